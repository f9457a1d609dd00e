// Sending and receiving without a transaction.
'use strict';

const { filter, message, next } = require('./client.js');
const { answer } = require('./transactions.js');

function names(count) {
    return Array.from({ length: count }, (_, i) => `m${i}`);
}

async function sendAndReceive(client) {
    const connection = await client.connect();
    const sender = await client.sender(connection, client.address('q'));
    const sent = {
        body: { list: [1, 'two', null, true], 'ключ': 2.5 },
        message_id: 'id-1',
        subject: 'a subject',
        content_type: 'text/x-test',
        durable: true,
        application_properties: { number: 42, text: 'wörter' },
        message_annotations: { 'x-opt-note': 'kept' },
    };
    const answered = await answer(sender.send(sent));
    const inbox = await client.receiver(connection, client.address('q'));
    const item = await inbox.credit(1).take();
    item.delivery.accept();
    const received = {};
    for (const field of Object.keys(sent)) received[field] = item.message[field];
    return {
        answered: [answered.kind, answered.settled],
        sent,
        received,
        tag: item.delivery.tag.toString(),
        left: await client.takeAll('q'),
    };
}

// P6: settled by the sender: no answer comes, the message does.
async function settled(client) {
    const connection = await client.connect();
    const sender = connection.open_sender({ target: client.address('q'), snd_settle_mode: 1 });
    await next(sender, 'sendable');
    for (const body of names(5)) sender.send({ body });
    const inbox = await client.receiver(await client.connect(), client.address('q'), { snd_settle_mode: 1 });
    const items = await inbox.credit(5).takeMany(5);
    return {
        received: items.map((item) => item.body),
        settled: items.map((item) => item.delivery.remote_settled),
        left: await client.takeAll('q'),
    };
}

// P5: all credit is used up or given back.
async function drain(client) {
    const connection = await client.connect();
    const inbox = await client.receiver(connection, client.address('q'));
    const empty = await inbox.credit(5).drain();
    const creditAfterEmpty = inbox.receiver.credit;
    await client.send('q', names(3));
    const items = await inbox.credit(10).drain();
    items.forEach((item) => item.delivery.accept());
    const creditAfter = inbox.receiver.credit;
    await client.send('q', ['later']);
    const later = await inbox.credit(1).take();
    later.delivery.accept();
    return {
        empty: empty.length,
        credit_after_empty: creditAfterEmpty,
        received: items.map((item) => item.body),
        credit_after: creditAfter,
        later: later.body,
    };
}

// P5: one message for one credit.
async function creditByOne(client) {
    await client.send('q', names(20));
    const inbox = await client.receiver(await client.connect(), client.address('q'));
    const bodies = [];
    for (let i = 0; i < 20; i++) {
        const item = await inbox.credit(1).take();
        item.delivery.accept();
        bodies.push([item.body, inbox.came.length]);
    }
    return { received: bodies };
}

// P11, D6: who gets a message again, and with which count.
async function outcomes(client) {
    const connection = await client.connect();
    const here = await client.receiver(connection, client.address('q'));
    const seen = { released: [], failed: [] };

    await client.send('q', ['released', 'behind']);
    for (let i = 0; i < 3; i++) {
        const item = await here.credit(1).take();
        seen.released.push([item.body, item.message.delivery_count || 0]);
        item.delivery.release();
    }
    let item = await here.credit(1).take();
    seen.released.push([item.body, item.message.delivery_count || 0]); // in its place still: before the one behind
    item.delivery.accept();
    item = await here.credit(1).take();
    seen.behind = item.body;
    item.delivery.accept();

    await client.send('q', ['failed']);
    for (let i = 0; i < 3; i++) {
        item = await here.credit(1).take();
        const annotations = item.message.message_annotations || {};
        seen.failed.push([item.message.delivery_count || 0, annotations['x-opt-last'] === undefined ? null : annotations['x-opt-last']]);
        item.delivery.modified({ delivery_failed: true, message_annotations: { 'x-opt-last': i } });
    }
    (await here.credit(1).take()).delivery.accept();

    await client.send('q', ['elsewhere', 'for anyone']);
    item = await here.credit(1).take();
    item.delivery.modified({ undeliverable_here: true });
    item = await here.credit(1).take();
    seen.here = item.body;
    item.delivery.accept();
    const there = await client.receiver(await client.connect(), client.address('q'));
    item = await there.credit(1).take();
    seen.there = item.body;
    item.delivery.accept();
    return seen;
}

// P11, D4: a rejected message goes to the dead letters; `seen.address` is where it came from.
async function rejected(client) {
    await client.send('q', ['bad', 'good']);
    const inbox = await client.receiver(await client.connect(), client.address('q'));
    const bad = await inbox.credit(2).take();
    bad.delivery.reject({ condition: 'app:bad', description: 'cannot be read' });
    const good = await inbox.take();
    good.delivery.accept();
    return { bad: bad.body, good: good.body, address: client.address('q'), left: await client.takeAll('q') };
}

// P11: rhea writes what was answered in one turn as one disposition, with the outcome of the first.
async function outcomesOfOneTurn(client) {
    const inbox = await client.receiver(await client.connect(), client.address('q'));
    const seen = {};
    for (const turns of [1, 2]) {
        await client.send('q', ['accepted', 'released']);
        const [first, second] = await inbox.credit(2).takeMany(2);
        first.delivery.accept();
        if (turns === 2) await new Promise(setImmediate);
        second.delivery.release();
        await client.send('q', ['last']);
        seen[turns] = await inbox.credit(2).takeUpTo('last');
        await inbox.drain();
    }
    return seen;
}

// A receiver from an address that the service makes in its own time.
async function appearing(client, connection, address) {
    for (;;) {
        try {
            return await client.receiver(connection, address);
        } catch (error) {
            if (!error.message.includes('amqp:not-found')) throw error;
            await new Promise((resolve) => setTimeout(resolve, 20));
        }
    }
}

// D4: the dead letters are an ordinary address.
async function deadLetters(client) {
    await client.send('q', ['bad']);
    const connection = await client.connect();
    const inbox = await client.receiver(connection, client.address('q'));
    (await inbox.credit(1).take()).delivery.reject({ condition: 'app:bad', description: 'cannot be read' });
    const dead = await appearing(client, connection, `%DLQ%${client.address('q')}`);
    const item = await dead.credit(1).take();
    item.delivery.accept();
    return { body: item.body, annotations: item.message.message_annotations || {} };
}

// P8: an address made for a link, and gone with it.
async function dynamic(client) {
    const connection = await client.connect();
    const inbox = await client.receiver(connection, { dynamic: true });
    const address = inbox.receiver.source.address;
    const elsewhere = await client.connect();
    const sender = await client.sender(elsewhere, address);
    const answered = await answer(sender.send({ body: 'hello' }));
    const item = await inbox.credit(1).take();
    item.delivery.accept();
    const ended = new Promise((resolve) => sender.once('sender_error', () => resolve(String(sender.error.condition))));
    await inbox.close();
    const relay = await client.sender(elsewhere, {});
    const after = await answer(relay.send({ to: address, body: 'too late' }));
    return {
        has_address: Boolean(address),
        is_dynamic: inbox.receiver.source.dynamic,
        answered: answered.kind,
        received: item.body,
        sender_ended: await ended,
        after: [after.kind, after.state && after.state.error ? String(after.state.error.condition) : null],
    };
}

// P9: a sender without an address; each message says where it goes.
async function relay(client) {
    const connection = await client.connect();
    const sender = await client.sender(connection, {});
    const answers = await Promise.all(
        ['a', 'b'].map((name) => answer(sender.send({ to: client.address(name), body: `to ${name}` }))),
    );
    const nowhere = await answer(sender.send({ body: 'without to' }));
    return {
        offers: [].concat(connection.offered_capabilities || []).map(String).sort(),
        answers: answers.map((each) => each.kind),
        nowhere: nowhere.kind,
        a: await client.takeAll('a'),
        b: await client.takeAll('b'),
    };
}

// P8: a browser leaves everything where it is.
async function browse(client) {
    await client.send('q', names(4));
    const source = { address: client.address('q'), distribution_mode: 'copy' };
    const connection = await client.connect();
    const browser = await client.receiver(connection, source);
    const first = (await browser.credit(10).drain()).map((item) => {
        item.delivery.accept();
        return item.body;
    });
    const mode = String(browser.receiver.source.distribution_mode);
    await browser.close();
    const again = await client.receiver(connection, source);
    const second = (await again.credit(10).drain()).map((item) => item.body);
    return { mode, first, second, left: await client.takeAll('q') };
}

// P16: rhea's own helper for selectors.
async function select(client) {
    const connection = await client.connect();
    const sender = await client.sender(connection, client.address('q'));
    for (const [i, body] of names(6).entries()) {
        await answer(sender.send({ body, application_properties: { n: i }, subject: i % 2 ? 'odd' : 'even' }));
    }
    const source = { address: client.address('q'), filter: filter.selector("n > 1 AND JMSType = 'odd'") };
    const inbox = await client.receiver(connection, source);
    const items = await inbox.credit(10).drain();
    items.forEach((item) => item.delivery.accept());
    const honoured = Object.keys(inbox.receiver.source.filter);
    await inbox.close();
    return { honoured, received: items.map((item) => item.body), left: await client.takeAll('q') };
}

// P2: more than one frame, both ways, in small frames.
async function large(client) {
    const connection = await client.connect({ max_frame_size: 4096 });
    const sender = await client.sender(connection, client.address('q'));
    const body = message.data_section(Buffer.alloc(1_000_000, 'x'));
    const answered = await answer(sender.send({ body }));
    const inbox = await client.receiver(connection, client.address('q'));
    const item = await inbox.credit(1).take();
    item.delivery.accept();
    return { answered: answered.kind, equal: item.body.content.equals(body.content) };
}

// P22: a producer that comes again on another connection posts what it has had no answer of under the same tags.
async function producer(client) {
    const answers = [];
    for (const upTo of [2, 4]) {
        const connection = await client.connect();
        const properties = { 'coordinator:producer': 'shop' };
        const sender = await client.sender(connection, client.address('q'), { properties });
        for (let i = 0; i < upTo; i++) answers.push((await answer(sender.send({ body: `m${i}` }, `order-${i}`))).kind);
        connection.close();
        await next(connection, 'connection_close');
    }
    return { answers, left: await client.takeAll('q') };
}

// P23: the error of a link says which service has its address.
async function elsewhere(client) {
    const connection = await client.connect();
    const refused = async (link, event) => {
        await next(link, event);
        return [link.error.condition, link.error.info];
    };
    const seen = {};
    seen.sender = await refused(connection.open_sender(client.address('q')), 'sender_error');
    seen.receiver = await refused(connection.open_receiver(client.address('q')), 'receiver_error');
    const place = seen.sender[1];
    const there = await client.connect({ host: place['network-host'], port: place.port });
    const sender = await client.sender(there, place.address);
    await answer(sender.send({ body: 'followed' }));
    const inbox = await client.receiver(there, place.address);
    const item = await inbox.credit(1).take();
    item.delivery.accept();
    return { ...seen, received: [item.body] };
}

module.exports = {
    elsewhere,
    producer,
    send_and_receive: sendAndReceive,
    settled,
    drain,
    credit_by_one: creditByOne,
    outcomes,
    outcomes_of_one_turn: outcomesOfOneTurn,
    rejected,
    dead_letters: deadLetters,
    dynamic,
    relay,
    browse,
    select,
    large,
};
