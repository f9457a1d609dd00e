// A consumer: writes each order into its inbox, a file with one JSON document a line, and then accepts the message.
//
//     node inbox.js [amqp://127.0.0.1:5672] [orders] [inbox.ndjson]
//
// A crash after the write and before the accept is known to the coordinator as an unsettled delivery: the message comes
// again, and the inbox knows it by its id. So each order is in the file once.
'use strict';

const fs = require('fs');
const rhea = require('rhea');

const [url = 'amqp://127.0.0.1:5672', address = 'orders', path = 'inbox.ndjson'] = process.argv.slice(2);
const { hostname, port } = new URL(url);

const known = new Set();
const inbox = fs.openSync(path, 'a+');
const before = fs.readFileSync(path, 'utf8');
// a line that a crash cut short was never accepted: it is taken off
const whole = before.slice(0, before.lastIndexOf('\n') + 1);
fs.ftruncateSync(inbox, Buffer.byteLength(whole));
for (const line of whole.split('\n').filter(Boolean)) known.add(JSON.parse(line).id);

let unwritten = [];

// All that came in one turn is written with one flush, and accepted after it.
function write() {
    const items = unwritten;
    unwritten = [];
    const lines = [];
    for (const { message } of items) {
        if (known.has(message.message_id)) continue;
        known.add(message.message_id);
        const processed_at = new Date().toISOString();
        lines.push(JSON.stringify({ ...JSON.parse(message.body), id: message.message_id, processed_at }) + '\n');
    }
    if (lines.length) {
        fs.writeSync(inbox, lines.join(''));
        fs.fsyncSync(inbox);
    }
    for (const { delivery } of items) delivery.accept();
}

rhea.on('message', ({ message, delivery }) => {
    try {
        if (message.message_id === undefined) throw Error('no message-id');
        JSON.parse(message.body);
    } catch (error) {
        delivery.reject({ condition: 'amqp:decode-error', description: `not an order: ${error.message}` });
        return;
    }
    if (!unwritten.length) setImmediate(write);
    unwritten.push({ message, delivery });
});

// rhea finds its way back when the service was gone; errors of links end the program.
rhea.on('disconnected', ({ error }) => {
    if (error) console.error(`disconnected: ${error.message}`);
});
const connection = rhea.connect(
    { host: hostname, port: port || 5672, initial_reconnect_delay: 50, max_reconnect_delay: 1000 });
connection.open_receiver({ source: address, credit_window: 200, autoaccept: false });

function end() {
    if (unwritten.length) write();
    connection.close();
}
connection.on('connection_close', () => process.exit(0));
process.on('SIGTERM', end);
process.on('SIGINT', end);
