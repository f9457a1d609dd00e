// Runs the cases in a page: with the bundle that rhea comes with, whose `require` knows rhea alone, and what Node has and
// a browser lacks.
'use strict';

const bundled = require('rhea');

globalThis.Buffer = new bundled.types.Writer().toBuffer().constructor;
globalThis.setImmediate = (callback) => setTimeout(callback, 0);

// rhea's own files are not to be had: the page's control links have no target once they are attached
const modules = { rhea: bundled, 'rhea/lib/terminus.js': {} };

async function load(name) {
    const text = await (await fetch(name)).text();
    const made = { exports: {} };
    new Function('require', 'module', text)((wanted) => modules[wanted], made);
    modules[name] = made.exports;
}

// What the case `name` sees of the service at `url`.
async function run(name, url) {
    for (const each of ['./transactions.js', './client.js', './transaction_cases.js']) await load(each);
    const details = bundled.websocket_connect(WebSocket)(url, ['amqp'], {});
    const client = new modules['./client.js'].Client({ connection_details: details }, `page.${name}`);
    const seen = await modules['./transaction_cases.js'][name](client);
    await client.close();
    return seen;
}
