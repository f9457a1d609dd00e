// Topics with their subscriptions, consumer groups, what expires, and one connection alone for a container.
'use strict';

const fs = require('fs');

const rhea = require('rhea');

const { next } = require('./client.js');
const { answer } = require('./transactions.js');

const topic = (client) => ({ address: client.address('t'), capabilities: ['topic'] });

async function publish(client, bodies) {
    const connection = await client.connect();
    const sender = await client.sender(connection, topic(client));
    for (const body of bodies) await answer(sender.send({ body }));
}

async function closed(connection) {
    const end = next(connection, 'connection_close');
    connection.close();
    await end;
}

// D1: each subscriber has every message; those of one shared subscription have one each.
async function topics(client) {
    const shared = { ...topic(client), capabilities: ['topic', 'shared', 'global'], expiry_policy: 'never' };
    const connection = await client.connect();
    const other = await client.connect();
    const alone = [await client.receiver(connection, topic(client)), await client.receiver(other, topic(client))];
    const members = [
        await client.receiver(connection, shared, { name: 'prices|1' }),
        await client.receiver(other, shared, { name: 'prices|2' }),
    ];
    await publish(client, ['m0', 'm1']);
    const seen = { alone: [], shared: [] };
    for (const inbox of alone) {
        const items = await inbox.credit(2).takeMany(2);
        seen.alone.push(items.map((item) => item.body));
    }
    for (const inbox of members) {
        const item = await inbox.credit(1).take();
        item.delivery.accept();
        seen.shared.push(item.body);
    }
    seen.shared.sort();
    for (const inbox of members) await inbox.close();
    return seen;
}

// D1: a lasting subscription gets what came while its connection was away, until its link is closed.
async function lasting(client) {
    const source = { ...topic(client), durable: 2, expiry_policy: 'never' };
    const seen = {};
    for (const round of ['first', 'away', 'closed']) {
        if (round !== 'first') await publish(client, [round]);
        const connection = await client.connect({ container_id: 'rhea-reader' });
        const inbox = await client.receiver(connection, source, { name: 'prices' });
        if (round === 'first') {
            await publish(client, [round]);
            const answered = inbox.receiver.source;
            seen.answered = [String(answered.expiry_policy), answered.durable];
        }
        if (round === 'closed') await publish(client, ['end']);
        seen[round] = await inbox.credit(10).takeUpTo(round === 'closed' ? 'end' : round);
        if (round === 'away') await inbox.close();
        await closed(connection);
    }
    return seen;
}

// D1: each group of a queue has every message.
async function broadcast(client) {
    const connection = await client.connect();
    const seen = {};
    const inboxes = {};
    for (const listener of ['first', 'second']) {
        inboxes[listener] = await client.receiver(connection, `${client.address('q')}::*`);
    }
    await client.send('q', ['m0', 'm1']);
    for (const [listener, inbox] of Object.entries(inboxes)) seen[listener] = await inbox.credit(2).takeUpTo('m1');
    seen.queue = await client.takeAll('q');
    return seen;
}

async function groups(client) {
    const connection = await client.connect();
    const seen = {};
    const inboxes = {};
    for (const group of ['billing', 'shipping']) {
        inboxes[group] = await client.receiver(connection, `${client.address('q')}::${group}`);
    }
    await client.send('q', ['m0', 'm1']);
    for (const [group, inbox] of Object.entries(inboxes)) seen[group] = await inbox.credit(2).takeUpTo('m1');
    seen.default = await client.takeAll('q');
    return seen;
}

// P12: what has expired is not delivered.
async function expiration(client) {
    const connection = await client.connect();
    const sender = await client.sender(connection, client.address('q'));
    await answer(sender.send({ body: 'brief', ttl: 1 }));
    await answer(sender.send({ body: 'lasting', ttl: 3_600_000 }));
    await new Promise((resolve) => setTimeout(resolve, 20));
    return { left: await client.takeAll('q') };
}

// P15: a second connection of the container is refused, or closes the first where that asked for it.
async function sole(client) {
    const capability = 'sole-connection-for-container';
    const alone = (id, policy) => ({
        container_id: id,
        desired_capabilities: [capability],
        properties: { 'sole-connection-enforcement-policy': policy },
    });
    const refuse = await client.connect(alone('rhea-refuse', rhea.types.wrap_uint(0)));
    const offered = [].concat(refuse.offered_capabilities).map(String).includes(capability);
    const errorOf = (connection) =>
        new Promise((resolve) => connection.once('connection_error', () => resolve(String(connection.error.condition))));
    const second = rhea
        .create_container()
        .connect({ ...client.place, reconnect: false, ...alone('rhea-refuse', rhea.types.wrap_uint(0)) });
    const refused = await errorOf(second);
    const first = await client.connect(alone('rhea-close', rhea.types.wrap_uint(1)));
    const end = errorOf(first);
    await client.connect(alone('rhea-close', rhea.types.wrap_uint(1)));
    return { offered, refused, closed: await end };
}

// What a client sees whose connection an operator closes.
async function closed_by_an_operator(client) {
    const connection = await client.connect({ container_id: 'rhea-closed-by-hand' });
    await client.sender(connection, client.address('q'));
    await new Promise((resolve) => connection.once('connection_error', resolve));
    return { condition: String(connection.error.condition), description: connection.error.description };
}

// RFC 7628: rhea has it not, but takes mechanisms of its users. The challenge is the reason of a refusal.
function oauthbearer(token) {
    const response = Buffer.from(`n,,\x01auth=Bearer ${token}\x01\x01`);
    const start = (callback) => callback(undefined, response);
    const step = (challenge, callback) => {
        const { status } = JSON.parse(challenge.toString());
        callback(status === 'invalid_token' ? undefined : status, Buffer.from('\x01'));
    };
    return { OAUTHBEARER: () => ({ start, step }) };
}

// S1: as the environment says.
async function login(client) {
    const { LOGIN_USER, LOGIN_PASSWORD, LOGIN_MECHANISM } = process.env;
    const container = rhea.create_container();
    const options = { ...client.place, reconnect: false };
    if (LOGIN_MECHANISM === 'PLAIN') Object.assign(options, { username: LOGIN_USER, password: LOGIN_PASSWORD });
    if (LOGIN_MECHANISM === 'XOAUTH2') Object.assign(options, { username: LOGIN_USER, token: LOGIN_PASSWORD });
    if (LOGIN_MECHANISM === 'OAUTHBEARER') options.sasl_mechanisms = oauthbearer(LOGIN_PASSWORD);
    if (process.env.LOGIN_CA) Object.assign(options, { transport: 'tls', ca: fs.readFileSync(process.env.LOGIN_CA) });
    if (LOGIN_MECHANISM === 'EXTERNAL') {
        const [cert, key] = [process.env.LOGIN_CERTIFICATE, process.env.LOGIN_KEY].map((file) => fs.readFileSync(file));
        Object.assign(options, { cert, key, enable_sasl_external: true });
    }
    return new Promise((resolve) => {
        container.on('connection_error', (context) => resolve({ refused: String(context.error) }));
        container.on('disconnected', () => resolve({ refused: 'disconnected' }));
        const connection = container.connect(options);
        const seen = { in: true };
        connection.on('connection_close', () => resolve(seen));
        connection.on('connection_open', () => {
            if (!process.env.LOGIN_ADDRESS) {
                connection.close();
                return;
            }
            // what it sees at an address for which its user has no permission
            connection.on('sender_error', ({ sender }) => {
                seen.send = sender.error.condition;
                connection.open_receiver(process.env.LOGIN_ADDRESS);
            });
            connection.on('receiver_error', ({ receiver }) => {
                seen.receive = receiver.error.condition;
                connection.close();
            });
            connection.open_sender(process.env.LOGIN_ADDRESS);
        });
    });
}

module.exports = { topics, lasting, broadcast, groups, expiration, sole, closed_by_an_operator, login };
