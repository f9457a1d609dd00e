// What rhea lacks for transactions (AMQP 1.0, part 4): the coordinator target, the states declared and
// transactional-state, and transfers that carry a state. Everything else is rhea as published.
'use strict';

const rhea = require('rhea');
const terminus = require('rhea/lib/terminus.js');

const { types, message } = rhea;

function composite(name, code, fields) {
    const made = types.define_composite({ name, code, fields });
    made.composite_type = name; // the name of the event that rhea emits for the state
    return made;
}

const Coordinator = composite('coordinator', 0x30, [{ name: 'capabilities', type: 'symbol', multiple: true }]);
const Declare = composite('declare', 0x31, [{ name: 'global_id', type: '*' }]);
const Discharge = composite('discharge', 0x32, [
    { name: 'txn_id', type: 'binary', mandatory: true },
    { name: 'fail', type: 'boolean' },
]);
const Declared = composite('declared', 0x33, [{ name: 'txn_id', type: 'binary', mandatory: true }]);
const TransactionalState = composite('transactional_state', 0x34, [
    { name: 'txn_id', type: 'binary', mandatory: true },
    { name: 'outcome', type: '*' },
]);

function code(described) {
    return described && described.descriptor ? Number(described.descriptor.value) : undefined;
}

const unwrapOutcome = message.unwrap_outcome;
message.unwrap_outcome = (state) => {
    if (code(state) === 0x33) return new Declared(state.value);
    if (code(state) === 0x34) return new TransactionalState(state.value);
    return unwrapOutcome(state);
};

const unwrapTerminus = terminus.unwrap;
terminus.unwrap = (field) => (code(field) === 0x30 ? new Coordinator(field.value) : unwrapTerminus(field));

// rhea never gives a transfer a state: it is put in on the way out.
function carryStates(session) {
    if (session.carriesStates) return;
    session.carriesStates = true;
    const output = session.output;
    session.output = function (frame, payload) {
        if (frame.delivery_tag !== undefined) {
            const delivery = session.outgoing.deliveries.by_id(frame.delivery_id);
            if (delivery && delivery.postedState) frame.value[7] = delivery.postedState;
        }
        output.call(session, frame, payload);
    };
}

// The answer to a delivery: {kind, state, settled}, kind being a state's name or 'detached'.
function answer(delivery) {
    const { link } = delivery;
    if (delivery.answered) return delivery.answered;
    delivery.answered = new Promise((resolve) => {
        const kinds = ['accepted', 'rejected', 'released', 'modified', 'declared', 'transactional_state', 'sender_close'];
        const listeners = kinds.map((kind) => [
            kind,
            (context) => {
                if (kind !== 'sender_close' && context.delivery !== delivery) return;
                listeners.forEach(([event, listener]) => link.removeListener(event, listener));
                if (kind === 'sender_close') resolve({ kind: 'detached', error: link.error });
                else resolve({ kind, state: delivery.remote_state, settled: delivery.remote_settled });
            },
        ]);
        listeners.forEach(([event, listener]) => link.on(event, listener));
    });
    return delivery.answered;
}

// A control link on `connection`; `options` go into the attach.
function openController(connection, options = {}) {
    const controller = connection.open_sender({ target: {}, treat_modified_as_released: false, ...options });
    controller.setMaxListeners(0);
    controller.local.attach.target = Coordinator.create({ capabilities: ['amqp:local-transactions'] }).described();
    // refusals come as errors of the link, which the case looks at
    controller.on('sender_error', () => {});
    return controller;
}

// Sends one control message. rhea's encoder loses the descriptor of a described body, so the section is put together
// here.
function sendControl(controller, body) {
    const writer = new types.Writer();
    writer.write_bytes(Buffer.from([0x00, 0x53, 0x77])); // amqp-value
    writer.write(body);
    return controller.send(writer.toBuffer(), undefined, 0);
}

function control(controller, body) {
    return answer(sendControl(controller, body));
}

// The descriptors may come as numbers (the default) or as symbols.
function declareBody({ symbolic = false, globalId } = {}) {
    const body = Declare.create(globalId === undefined ? {} : { global_id: types.wrap(globalId) }).described();
    return symbolic ? types.described_nc(types.wrap_symbol('amqp:declare:list'), types.wrap_list([null])) : body;
}

function dischargeBody(txnId, fail) {
    return Discharge.create(fail === undefined ? { txn_id: txnId } : { txn_id: txnId, fail }).described();
}

// A declared transaction's id.
async function declare(controller, options) {
    const answered = await control(controller, declareBody(options));
    if (answered.kind !== 'declared') throw Error('declare was answered with ' + answered.kind);
    return answered.state.txn_id;
}

// Within one turn rhea writes transfers before dispositions: let retirements go out before the discharge that covers
// them.
async function discharge(controller, txnId, fail) {
    await new Promise(setImmediate);
    return control(controller, dischargeBody(txnId, fail));
}

// Posts in a transaction; the answer to an unsettled post.
function post(sender, txnId, msg, { settled = false } = {}) {
    carryStates(sender.session);
    const delivery = sender.send(msg);
    delivery.postedState = TransactionalState.create({ txn_id: txnId }).described();
    delivery.settled = settled;
    return settled ? undefined : answer(delivery);
}

// Gives `delivery` an outcome (as message.accepted()) in a transaction.
function retire(delivery, txnId, outcome, { settled = true } = {}) {
    delivery.update(settled, TransactionalState.create({ txn_id: txnId, outcome: outcome.described() }).described());
}

// The kind of the outcome within a transactional state.
function outcomeOf(state) {
    return state.outcome ? message.unwrap_outcome(state.outcome).constructor.composite_type : null;
}

module.exports = { answer, control, declare, declareBody, discharge, dischargeBody, openController, outcomeOf, post, retire, sendControl };
