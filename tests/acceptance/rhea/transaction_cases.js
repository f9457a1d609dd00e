// Transactions by hand: each frame of the control link is this program's own.
'use strict';

const { types } = require('rhea');

const { message, next } = require('./client.js');
const { control, declare, declareBody, discharge, dischargeBody, openController, outcomeOf, post, retire, sendControl } =
    require('./transactions.js');

const accepted = () => message.accepted();

function error(answered) {
    if (answered.kind === 'detached') return ['detached', answered.error && answered.error.condition];
    const cause = answered.state && answered.state.error;
    return [answered.kind, cause ? cause.condition : null];
}

function text(condition) {
    return condition === null || condition === undefined ? null : String(condition);
}

function told(answered) {
    const [kind, condition] = error(answered);
    return [kind, text(condition)];
}

async function controllerOf(connection, options) {
    const controller = openController(connection, options);
    await next(controller, 'sender_open');
    return controller;
}

// T1, T7, T8, T20, T21: posts are hidden until the discharge.
async function commit(client) {
    const connection = await client.connect();
    const controller = await controllerOf(connection);
    const sender = await client.sender(connection, client.address('q'));
    const inbox = await client.receiver(await client.connect(), client.address('q'));
    inbox.credit(100);
    const txnId = await declare(controller);
    const answers = await Promise.all([0, 1, 2].map((i) => post(sender, txnId, { body: `m${i}` })));
    await client.send('q', ['before commit']);
    const before = await inbox.takeUpTo('before commit');
    const discharged = await discharge(controller, txnId, false);
    const after = await inbox.takeUpTo('m2');
    return {
        capabilities: [].concat(controller.target.capabilities).map(String).sort(),
        txn_id_octets: txnId.length,
        answers: answers.map((each) => [each.kind, outcomeOf(each.state), each.state.txn_id.equals(txnId)]),
        before,
        discharged: told(discharged),
        after,
    };
}

// T7: the connection is cut once the first transaction is committed; rhea connects again, with its links.
async function comesBack(client) {
    const connection = await client.connect({ reconnect: true, initial_reconnect_delay: 50, max_reconnect_delay: 500 });
    const controller = await controllerOf(connection);
    const sender = await client.sender(connection, client.address('q'));
    const committed = [];
    for (const body of ['before', 'after']) {
        const txnId = await declare(controller);
        await post(sender, txnId, { body });
        committed.push(told(await discharge(controller, txnId, false)));
        if (body === 'before') {
            const cut = new Promise((resolve) => connection.once('disconnected', resolve));
            process.stdout.write('{"step": "cut it"}\n');
            await cut;
            await new Promise((resolve) => sender.once('sendable', resolve));
        }
    }
    return { committed, left: await client.takeAll('q') };
}

// T9: fail true takes back; fail left out means false.
async function rollback(client) {
    const connection = await client.connect();
    const controller = await controllerOf(connection);
    const sender = await client.sender(connection, client.address('q'));
    const first = await declare(controller);
    await post(sender, first, { body: 'rolled back' });
    post(sender, first, { body: 'rolled back, settled' }, { settled: true });
    const rolledBack = await discharge(controller, first, true);
    const second = await declare(controller, { symbolic: true });
    post(sender, second, { body: 'settled' }, { settled: true });
    await post(sender, second, { body: 'unsettled' });
    const committed = await discharge(controller, second);
    return { rolled_back: told(rolledBack), committed: told(committed), left: await client.takeAll('q') };
}

// T26, T27: an unsettled retirement that is rolled back stays with its link; it can be retired again.
async function retirement(client) {
    await client.send('q', ['m0', 'm1', 'm2', 'm3', 'm4']);
    const connection = await client.connect();
    const controller = await controllerOf(connection);
    const inbox = await client.receiver(connection, client.address('q'));
    const items = await inbox.credit(10).takeMany(4);
    const first = await declare(controller);
    retire(items[0].delivery, first, accepted(), { settled: false });
    retire(items[1].delivery, first, accepted(), { settled: false });
    const rolledBack = await discharge(controller, first, true);
    const stillThere = (await inbox.take()).body; // m4: what was rolled back is not sent again
    const second = await declare(controller);
    retire(items[0].delivery, second, accepted());
    retire(items[2].delivery, second, accepted());
    const committed = await discharge(controller, second);
    items[1].delivery.accept(); // outside any transaction
    await inbox.close(); // m3 and m4 come back
    return { rolled_back: told(rolledBack), next: stillThere, committed: told(committed), left: await client.takeAll('q') };
}

// T26: every outcome is applied at the commit, and not before.
async function outcomes(client) {
    await client.send('q', ['accepted', 'released', 'modified', 'rejected', 'untouched']);
    const connection = await client.connect();
    const controller = await controllerOf(connection);
    const inbox = await client.receiver(connection, client.address('q'));
    const items = await inbox.credit(5).takeMany(5);
    const txnId = await declare(controller);
    const given = [
        message.accepted(),
        message.released(),
        message.modified({ delivery_failed: true }),
        message.rejected({ error: { condition: 'app:bad', description: 'no good' } }),
    ];
    for (const [place, outcome] of given.entries()) {
        retire(items[place].delivery, txnId, outcome);
        // rhea puts the first two dispositions of one turn into one range, whatever their states
        await new Promise(setImmediate);
    }
    const other = await client.receiver(await client.connect(), client.address('q'));
    other.credit(10);
    await client.send('q', ['before commit']);
    const before = await other.takeUpTo('before commit');
    const discharged = await discharge(controller, txnId, false);
    const back = (await other.takeMany(2)).map(({ body, message: each, delivery }) => {
        delivery.accept();
        return [body, each.delivery_count || 0];
    });
    return { before, discharged: told(discharged), back: back.sort() };
}

// T31: two sessions, two addresses and a retirement in one transaction.
async function sessions(client) {
    await client.send('from', ['moved']);
    const connection = await client.connect();
    const controller = await controllerOf(connection);
    const other = connection.create_session();
    other.open();
    const a = await client.sender(connection, client.address('a'));
    const b = await client.sender(other, client.address('b'));
    const inbox = await client.receiver(other, client.address('from'));
    const item = await inbox.credit(1).take();
    const first = await declare(controller);
    const second = await declare(controller); // several at once
    await post(a, first, { body: 'first a' });
    await post(b, second, { body: 'second b' });
    await post(b, first, { body: 'first b' });
    await post(a, second, { body: 'second a' });
    retire(item.delivery, first, accepted());
    const rolledBack = await discharge(controller, second, true);
    const committed = await discharge(controller, first, false);
    return {
        rolled_back: told(rolledBack),
        committed: told(committed),
        a: await client.takeAll('a'),
        b: await client.takeAll('b'),
        from: await client.takeAll('from'),
    };
}

// T4, T6, T10, T11, T12: what the control link refuses; it stays.
async function refusals(client) {
    const connection = await client.connect();
    const controller = await controllerOf(connection);
    const seen = {};
    seen.text_body = told(await control(controller, types.wrap('declare, please')));
    seen.global_id = told(await control(controller, declareBody({ globalId: 'global' })));
    seen.unknown = told(await discharge(controller, Buffer.alloc(16, 7), false));
    const sender = await client.sender(connection, client.address('q'));
    const committed = await declare(controller);
    await post(sender, committed, { body: 'committed' });
    seen.commit = told(await discharge(controller, committed, false));
    seen.commit_again = told(await discharge(controller, committed, false));
    seen.rollback_after_commit = told(await discharge(controller, committed, true));
    const rolledBack = await declare(controller);
    await post(sender, rolledBack, { body: 'rolled back' });
    seen.rollback = told(await discharge(controller, rolledBack, true));
    seen.rollback_again = told(await discharge(controller, rolledBack, true));
    seen.commit_after_rollback = told(await discharge(controller, rolledBack, false));
    const elsewhere = await controllerOf(await client.connect());
    const undecided = await declare(controller);
    await post(sender, undecided, { body: 'undecided' });
    seen.of_another_connection = told(await discharge(elsewhere, undecided, false));
    seen.decided_asked_elsewhere = told(await discharge(elsewhere, committed, false));
    seen.own_afterwards = told(await discharge(controller, undecided, false));
    seen.post_unknown = await told(await post(sender, Buffer.alloc(16, 9), { body: 'lost' }));
    seen.left = await client.takeAll('q');
    return seen;
}

// T5: a settled declare or discharge detaches the control link; the connection stays.
async function settledControl(client) {
    const connection = await client.connect();
    const seen = {};
    const bodies = async (kind) => {
        const controller = await controllerOf(connection);
        const txnId = kind === 'discharge' ? await declare(controller) : null;
        if (txnId) {
            const sender = await client.sender(connection, client.address('q'));
            await post(sender, txnId, { body: 'never' });
        }
        const closed = new Promise((resolve) => controller.on('sender_close', resolve));
        sendControl(controller, txnId ? dischargeBody(txnId, false) : declareBody()).settled = true;
        await closed;
        return text(controller.error && controller.error.condition);
    };
    seen.declare = await bodies('declare');
    seen.discharge = await bodies('discharge');
    const controller = await controllerOf(connection);
    seen.then = told(await discharge(controller, await declare(controller), false));
    seen.left = await client.takeAll('q');
    return seen;
}

// T14: a transaction has a time; after it, it is rolled back and says so.
async function timeout(client) {
    const connection = await client.connect();
    const controller = await controllerOf(connection, { properties: { 'coordinator:timeout-ms': 300 } });
    const sender = await client.sender(connection, client.address('q'));
    const txnId = await declare(controller);
    await post(sender, txnId, { body: 'too late' });
    // late by a wide margin; the answer is the same however late
    await new Promise((resolve) => setTimeout(resolve, 1500));
    const discharged = await discharge(controller, txnId, false);
    return {
        discharged: told(discharged),
        description: discharged.state && discharged.state.error ? discharged.state.error.description : null,
        connection_open: connection.is_open(),
        left: await client.takeAll('q'),
    };
}

// T13: the control link goes, its transactions go.
async function controlLinkClosed(client) {
    await client.send('from', ['m']);
    const connection = await client.connect();
    const controller = await controllerOf(connection);
    const sender = await client.sender(connection, client.address('q'));
    const inbox = await client.receiver(connection, client.address('from'));
    const item = await inbox.credit(1).take();
    const txnId = await declare(controller);
    await post(sender, txnId, { body: 'undecided' });
    retire(item.delivery, txnId, accepted());
    const closed = next(controller, 'sender_close');
    controller.close();
    await closed;
    const again = await controllerOf(connection);
    const asked = await discharge(again, txnId, false);
    return { asked: told(asked), q: await client.takeAll('q'), from: await client.takeAll('from') };
}

// T31: one transaction of 5,000 posts.
async function manyPosts(client) {
    const count = 5000;
    const connection = await client.connect();
    const controller = await controllerOf(connection);
    const sender = await client.sender(connection, client.address('q'));
    const txnId = await declare(controller);
    const answers = [];
    while (answers.length < count) {
        if (!sender.sendable()) await next(sender, 'sendable');
        answers.push(post(sender, txnId, { body: answers.length }));
    }
    const kinds = new Set((await Promise.all(answers)).map((each) => outcomeOf(each.state)));
    const committed = told(await discharge(controller, txnId, false));
    const inbox = await client.receiver(connection, client.address('q'));
    const received = await inbox.credit(count).takeUpTo(count - 1);
    return { kinds: [...kinds], committed, received: received.length, in_order: received.every((body, i) => body === i) };
}

// H2, H3, H13, H20: the transaction outlives its connection; one of its producer group decides, and no other.
async function checkable(client) {
    const group = { properties: { 'coordinator:producer-group': 'rhea' } };
    const inbox = await client.receiver(await client.connect(), client.address('q'));
    inbox.credit(100);
    const lost = await client.connect();
    const txnId = await declare(await controllerOf(lost, group));
    const sender = await client.sender(lost, client.address('q'));
    const posted = await post(sender, txnId, { body: 'half' });
    lost.close();
    await next(lost, 'connection_close');
    await client.send('q', ['before commit']);
    const before = await inbox.takeUpTo('before commit');
    const connection = await client.connect();
    const stranger = await discharge(await controllerOf(connection), txnId, false);
    const back = await discharge(await controllerOf(connection, group), txnId, false);
    return {
        posted: [posted.kind, outcomeOf(posted.state)],
        before,
        stranger: told(stranger),
        back: told(back),
        after: await inbox.takeUpTo('half'),
    };
}

// H20: what a checkable transaction has retired goes to nobody else, though its connection is gone, until it is
// decided.
async function checkableRetirement(client) {
    const group = { properties: { 'coordinator:producer-group': 'rhea' } };
    const seen = {};
    for (const [name, fail] of [['committed', false], ['rolled back', true]]) {
        await client.send('q', [`${name} 1`, `${name} 2`]);
        const lost = await client.connect();
        const txnId = await declare(await controllerOf(lost, group));
        const items = await (await client.receiver(lost, client.address('q'))).credit(2).takeMany(2);
        for (const item of items) retire(item.delivery, txnId, accepted(), { settled: false });
        const sender = await client.sender(lost, client.address('out'));
        await post(sender, txnId, { body: `out of ${name}` });
        lost.close();
        await next(lost, 'connection_close');
        const before = await client.takeAll('q');
        const back = await discharge(await controllerOf(await client.connect(), group), txnId, fail);
        seen[name] = [before, told(back), await client.takeAll('q'), await client.takeAll('out')];
    }
    return seen;
}

// H2, H8: a producer that vanishes after its posts; a checker says what became of them.
async function checkBack(client) {
    const group = client.address('producers');
    const checks = await client.receiver(await client.connect(), `$check/${group}`);
    const inbox = await client.receiver(await client.connect(), client.address('q'));
    inbox.credit(100);
    const seen = [];
    for (const [body, outcome] of [['rejected', 'reject'], ['released', 'release'], ['accepted', 'accept']]) {
        const connection = await client.connect({ properties: { 'coordinator:producer-group': group } });
        const controller = await controllerOf(connection, {
            properties: { 'coordinator:check-immunity-ms': types.wrap_uint(0) },
        });
        const sender = await client.sender(connection, client.address('q'));
        const txnId = await declare(controller);
        for (const part of [1, 2]) await post(sender, txnId, { body: `${body} ${part}` });
        connection.close();
        await next(connection, 'connection_close');
        const check = await checks.credit(1).take();
        const told = check.message.delivery_annotations;
        seen.push([
            check.body,
            Buffer.compare(told['x-opt-txn-id'], txnId) === 0,
            told['x-opt-check-count'],
            told['x-opt-half-count'],
            told['x-opt-original-address'] === client.address('q'),
        ]);
        check.delivery[outcome]();
    }
    return { seen, left: await inbox.takeUpTo('accepted 2') };
}

module.exports = {
    check_back: checkBack,
    checkable,
    checkable_retirement: checkableRetirement,
    comes_back: comesBack,
    commit,
    rollback,
    retirement,
    outcomes_in_transaction: outcomes,
    sessions,
    refusals,
    settled_control: settledControl,
    timeout,
    control_link_closed: controlLinkClosed,
    many_posts: manyPosts,
};
