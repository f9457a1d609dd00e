// Runs one case against a service: `node driver.js CASE PORT`, or with the URL of a WebSocket for the port. Prints one
// line of JSON with what the client saw and exits with 0; 1: the case threw or took too long; 2: no such case. The test
// that started it judges what was seen.
'use strict';

const rhea = require('rhea');
const WebSocket = require('ws');

const cases = {
    ...require('./transaction_cases.js'),
    ...require('./delivery_cases.js'),
    ...require('./subscription_cases.js'),
};
const { Client } = require('./client.js');

const PATIENCE_MS = 120000;

function at(place) {
    if (!place.startsWith('ws')) return { host: '127.0.0.1', port: Number(place) };
    const details = rhea.websocket_connect(WebSocket)(place, ['amqp'], {});
    return { connection_details: details, host: new URL(place).hostname };
}

async function main([name, place]) {
    if (!cases[name] || !place) {
        console.error('usage: driver.js CASE PORT|URL, with CASE one of ' + Object.keys(cases).join(' '));
        process.exit(2);
    }
    const timer = setTimeout(() => {
        console.error(`case ${name} did not end in ${PATIENCE_MS} ms`);
        process.exit(1);
    }, PATIENCE_MS);
    const client = new Client(at(place), name);
    const seen = await cases[name](client);
    await client.close();
    clearTimeout(timer);
    process.stdout.write(JSON.stringify(seen) + '\n');
}

main(process.argv.slice(2)).catch((error) => {
    console.error(error);
    process.exit(1);
});
