// The service as one case sees it: connections, links that are open when they are handed out, texts.
'use strict';

const rhea = require('rhea');
const { answer } = require('./transactions.js');

const { filter, message } = rhea;

// The next `event` of `emitter`; its context. An error event of a link or the connection comes as an exception.
function next(emitter, event) {
    return new Promise((resolve, reject) => {
        const failures = ['sender_error', 'receiver_error', 'connection_error', 'disconnected'].filter((e) => e !== event);
        const done = (settle) => (context) => {
            emitter.removeListener(event, good);
            failures.forEach((failure) => emitter.removeListener(failure, bad));
            settle(context);
        };
        const good = done(resolve);
        const bad = done((context) => {
            const cause = context.error || (context.sender || context.receiver || context.connection).error;
            reject(Error(`waiting for ${event}: ${cause && cause.condition}: ${cause && cause.description}`));
        });
        emitter.on(event, good);
        failures.forEach((failure) => emitter.on(failure, bad));
    });
}

// A receiver's messages in order: `take()` waits for the next one, {body, message, delivery}.
class Inbox {
    constructor(receiver) {
        this.receiver = receiver;
        this.waiting = [];
        this.came = [];
        receiver.on('message', (context) => {
            const item = { body: context.message.body, message: context.message, delivery: context.delivery };
            if (this.waiting.length) this.waiting.shift()(item);
            else this.came.push(item);
        });
    }

    credit(count) {
        this.receiver.add_credit(count);
        return this;
    }

    take() {
        if (this.came.length) return Promise.resolve(this.came.shift());
        return new Promise((resolve) => this.waiting.push(resolve));
    }

    async takeMany(count) {
        const items = [];
        for (let i = 0; i < count; i++) items.push(await this.take());
        return items;
    }

    // Takes, accepting each, up to and with `last`.
    async takeUpTo(last) {
        const bodies = [];
        let item;
        do {
            item = await this.take();
            item.delivery.accept();
            bodies.push(item.body);
        } while (item.body !== last);
        return bodies;
    }

    // Takes until nothing is left, by a drain.
    async drain() {
        const drained = next(this.receiver, 'receiver_drained');
        this.receiver.drain_credit();
        await drained;
        this.receiver.drain = false;
        return this.came.splice(0);
    }

    async close() {
        const closed = next(this.receiver, 'receiver_close');
        this.receiver.close();
        await closed;
    }
}

class Client {
    // `place`: what rhea is to connect to.
    constructor(place, prefix) {
        this.place = place;
        this.prefix = prefix;
        this.connections = [];
    }

    // The name of an address that no other case uses.
    address(name) {
        return `${this.prefix}.rhea.${name}`;
    }

    async connect(options = {}) {
        const container = rhea.create_container();
        const connection = container.connect({ ...this.place, reconnect: false, ...options });
        connection.setMaxListeners(0);
        this.connections.push(connection);
        await next(connection, 'connection_open');
        return connection;
    }

    async sender(connection, target, options = {}) {
        const sender = connection.open_sender({ target, treat_modified_as_released: false, ...options });
        sender.setMaxListeners(0);
        await next(sender, 'sendable');
        return sender;
    }

    async receiver(connection, source, options = {}) {
        const receiver = connection.open_receiver({ source, credit_window: 0, autoaccept: false, ...options });
        const inbox = new Inbox(receiver);
        // a refused attach is answered without a source, and then detached
        const closed = new Promise((resolve) => receiver.once('receiver_close', resolve));
        receiver.on('receiver_error', () => {
            if (receiver.source.address) throw Error(`link closed: ${receiver.error.condition}: ${receiver.error.description}`);
        });
        await next(receiver, 'receiver_open');
        if (!receiver.source.address) {
            await closed;
            throw Error(`attach refused: ${receiver.error.condition}: ${receiver.error.description}`);
        }
        return inbox;
    }

    // Sends bodies outside any transaction and waits until all are accepted.
    async send(name, bodies) {
        const connection = await this.connect();
        const sender = await this.sender(connection, this.address(name));
        const answers = await Promise.all(bodies.map((body) => answer(sender.send({ body }))));
        const refused = answers.find((each) => each.kind !== 'accepted');
        if (refused) throw Error('a message was ' + refused.kind);
        connection.close();
        await next(connection, 'connection_close');
    }

    // Everything left at an address: a mark is sent behind it and all before the mark is taken.
    async takeAll(name) {
        await this.send(name, ['end']);
        const connection = await this.connect();
        const inbox = await this.receiver(connection, this.address(name));
        const bodies = await inbox.credit(1000).takeUpTo('end');
        connection.close();
        await next(connection, 'connection_close');
        return bodies.slice(0, -1);
    }

    async close() {
        for (const connection of this.connections) {
            if (!connection.is_closed()) {
                const closed = next(connection, 'connection_close');
                connection.close();
                await closed;
            }
        }
    }
}

module.exports = { Client, Inbox, filter, message, next };
