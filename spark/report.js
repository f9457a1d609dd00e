(() => {
"use strict";
const nonce = document.currentScript.nonce;
const byId = id => document.getElementById(id);
const PAGE = 25;
const NAMES = {severity: "severity", kind: "kind", key: "key", address: "address", consumer_group: "consumer group",
  detail: "what", suggested_repair: "what to do", store: "store"};
// below what a finding says
const IDS = {txn_id: "transaction", half_id: "message"};
// the columns of findings.csv that the page has
const FILED = ["kind", "severity", "txn_id", "half_id", "address", "consumer_group", "key", "detail", "suggested_repair",
  "store"];

function made(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// --- moments: in the reader's zone, with UTC beside ----------------------------------------------------------------

function zone(at) {
  const minutes = -new Date(at).getTimezoneOffset(), size = Math.abs(minutes);
  const part = value => String(value).padStart(2, "0");
  return minutes ? `UTC${minutes < 0 ? "-" : "+"}${part(Math.floor(size / 60))}:${part(size % 60)}` : "UTC";
}

const written = at => new Date(at).toISOString().slice(0, 19).replace("T", " ");
const shifted = (at, moment) => at - new Date(moment).getTimezoneOffset() * 60000;

function both(at) {
  const utc = written(at);
  return zone(at) === "UTC" ? `${utc} UTC` : `${written(shifted(at, at))} ${zone(at)} (${utc} UTC)`;
}

function localTimes() {
  for (const time of document.querySelectorAll("time")) time.textContent = both(Date.parse(time.dateTime));
}

// --- what is packed ------------------------------------------------------------------------------------------------

async function unpacked(id) {
  const packed = atob(byId(id).textContent), octets = new Uint8Array(packed.length);
  for (let place = 0; place < packed.length; place++) octets[place] = packed.charCodeAt(place);
  return new Response(new Blob([octets]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// --- the table -----------------------------------------------------------------------------------------------------

function table(data) {
  const columns = data.columns, count = columns.kind.length;
  const shown = Object.keys(NAMES).filter(name => columns[name]?.some(value => value !== null && value !== ""));
  const searched = [...shown, ...Object.keys(IDS)];
  const ranks = Object.fromEntries(Object.entries(data.order).map(
    ([name, values]) => [name, new Map(values.map((value, rank) => [value, rank]))]));
  const state = {text: "", severity: "", kind: "", sort: "", down: false, page: 0};
  let rows = [];

  const option = (value, text) => made("option", {value, textContent: text});
  const choice = (name, all, values) => made("select", {id: `filter-${name}`, ariaLabel: `only one ${name}`},
    option("", all), ...values.map(([value, text]) => option(value, text)));
  const text = made("input", {type: "search", id: "filter-text", placeholder: "Find in all columns"});
  const there = name => new Set(columns[name]);
  const severity = choice("severity", "every severity",
    data.order.severity.filter(value => there("severity").has(value)).map(value => [value, value]));
  const kind = choice("kind", "every kind",
    data.order.kind.filter(value => there("kind").has(value)).map(value => [value, `${data.titles[value]} (${value})`]));
  const sort = made("select", {className: "sort", ariaLabel: "sort by"},
    option("", "worst first"), ...shown.map(name => option(name, `by ${NAMES[name]}`)));
  const download = made("button", {id: "download", textContent: "Download as CSV"});
  const head = made("tr", {}), body = made("tbody", {});
  const said = made("span", {id: "pages"});
  said.setAttribute("aria-live", "polite");
  const step = (label, to) => {
    const button = made("button", {textContent: label});
    button.addEventListener("click", () => { state.page = to(); draw(); });
    return button;
  };
  const last = () => Math.max(Math.ceil(rows.length / PAGE) - 1, 0);
  const back = [step("First", () => 0), step("Previous", () => state.page - 1)];
  const on = [step("Next", () => state.page + 1), step("Last", last)];
  const headers = new Map();
  for (const name of shown) {
    const button = made("button", {textContent: NAMES[name]});
    button.addEventListener("click", () => {
      state.down = state.sort === name && !state.down;
      state.sort = sort.value = name;
      choose();
    });
    headers.set(name, made("th", {scope: "col"}, button));
    head.append(headers.get(name));
  }

  function choose() {
    const wanted = state.text.toLowerCase();
    const has = row => searched.some(name => (columns[name][row] ?? "").toLowerCase().includes(wanted));
    rows = [];
    for (let row = 0; row < count; row++) {
      if (state.severity && columns.severity[row] !== state.severity) continue;
      if (state.kind && columns.kind[row] !== state.kind) continue;
      if (!wanted || has(row)) rows.push(row);
    }
    if (state.sort) {
      const rank = ranks[state.sort], column = columns[state.sort], sign = state.down ? -1 : 1;
      const value = rank ? row => rank.get(column[row]) : row => column[row] ?? "";
      const values = new Map(rows.map(row => [row, value(row)]));
      rows.sort((one, other) => {
        const left = values.get(one), right = values.get(other);
        return left < right ? -sign : left > right ? sign : one - other;
      });
    }
    for (const [name, header] of headers) {
      header.ariaSort = name === state.sort ? (state.down ? "descending" : "ascending") : "none";
      header.firstChild.textContent = NAMES[name] + (name !== state.sort ? "" : state.down ? " ▼" : " ▲");
    }
    state.page = 0;
    draw();
  }

  function cell(name, row) {
    const value = columns[name][row] ?? "", td = made("td", {className: name});
    td.dataset.name = NAMES[name];
    if (name === "severity") td.append(made("span", {className: `badge ${value}`, textContent: value}));
    else if (name === "kind") { td.textContent = data.titles[value]; td.title = value; }
    else td.textContent = name === "consumer_group" && value === "" && columns[name][row] !== null ? "(default)" : value;
    if (name === "detail") td.append(...ids(row));
    return td;
  }

  function ids(row) {
    const told = Object.keys(IDS).filter(id => columns[id][row] !== null)
      .map(id => made("span", {textContent: `${IDS[id]} ${columns[id][row]}`}));
    return told.length ? [made("div", {className: "ids"}, ...told)] : [];
  }

  function draw() {
    const from = state.page * PAGE, page = rows.slice(from, from + PAGE);
    body.replaceChildren(...page.map(row => made("tr", {}, ...shown.map(name => cell(name, row)))));
    const whole = rows.length === count ? "" : ` (of ${count.toLocaleString("en")})`;
    said.textContent = rows.length
      ? `${(from + 1).toLocaleString("en")} to ${(from + page.length).toLocaleString("en")} of ${rows.length.toLocaleString("en")}${whole}`
      : `none${whole}`;
    for (const button of back) button.disabled = state.page === 0;
    for (const button of on) button.disabled = state.page >= last();
  }

  function filed() {
    // no cell is a formula for a program of spreadsheets
    const harmless = value => /^\s*[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(value) ? `'${value}` : value;
    const quoted = value => /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
    const names = FILED.filter(name => columns[name]);
    const lines = rows.map(row => names.map(name => quoted(harmless(columns[name][row] ?? ""))).join(","));
    const link = made("a", {download: "findings-shown.csv"});
    link.href = URL.createObjectURL(new Blob([[names.join(","), ...lines, ""].join("\r\n")], {type: "text/csv"}));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  let waiting;
  text.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.text = text.value; choose(); }, 150);
  });
  severity.addEventListener("change", () => { state.severity = severity.value; choose(); });
  kind.addEventListener("change", () => { state.kind = kind.value; choose(); });
  sort.addEventListener("change", () => { state.sort = sort.value; state.down = false; choose(); });
  download.addEventListener("click", filed);
  for (const link of document.querySelectorAll("a.show")) {
    link.addEventListener("click", () => {
      Object.assign(state, {text: "", severity: "", kind: link.dataset.kind});
      text.value = severity.value = "";
      kind.value = state.kind;
      choose();
    });
  }
  byId("table").append(
    made("div", {className: "controls"}, text, severity, kind, sort, download),
    made("div", {className: "scroll"}, made("table", {className: "listed"}, made("thead", {}, head), body)),
    made("div", {className: "pages"}, ...back, said, ...on));
  choose();
}

// --- the plots -----------------------------------------------------------------------------------------------------

const PAPER = {ink: "#22303c", soft: "#5d6b78", line: "#e2e6ea", card: "#ffffff"};

function ground() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(Object.keys(PAPER).map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function axes(figure) {
  return Object.keys(figure.layout).filter(name => /^[xy]axis/.test(name));
}

function coloured(figure, colours) {
  const changed = {"font.color": colours.ink, "hoverlabel.bgcolor": colours.card, "hoverlabel.bordercolor": colours.soft,
    "hoverlabel.font.color": colours.ink, "modebar.color": colours.soft, "modebar.activecolor": colours.ink};
  for (const name of axes(figure)) {
    changed[`${name}.gridcolor`] = changed[`${name}.linecolor`] = changed[`${name}.zerolinecolor`] = colours.line;
    changed[`${name}.tickfont.color`] = colours.soft;
  }
  return changed;
}

// An axis has one offset from UTC, the one at the snapshot: where clocks change, no two hours fall on each other.
function inZone(figure, seenAt) {
  const placed = at => new Date(shifted(at, seenAt)).toISOString().slice(0, 23);
  for (const trace of figure.data) {
    trace.x = trace.x.map(placed);
    trace.customdata = trace.customdata.map(both);
  }
  figure.layout.xaxis.range = figure.layout.xaxis.range.map(placed);
}

async function plots(data) {
  const drawn = [];
  const family = getComputedStyle(document.body).fontFamily;
  // all there are: among Plotly's own is one that sends the plot to its makers
  const asked = {displaylogo: false, responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]]};
  for (const place of document.querySelectorAll(".chart")) {
    const {figure, overTime} = data.charts[place.dataset.chart];
    if (overTime) {
      inZone(figure, data.seenAt);
      place.previousElementSibling.append(` Times are ${zone(data.seenAt)}.`);
    }
    Object.assign(figure.layout, {paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: {family, size: 12}, hoverlabel: {font: {family}}, modebar: {bgcolor: "rgba(0,0,0,0)"},
      separators: ".,", dragmode: "zoom"});
    for (const name of axes(figure)) figure.layout[name].showline = name.startsWith("x");
    // a finger that scrolls over a plot goes on with the page
    if (matchMedia("(pointer: coarse)").matches) figure.layout.dragmode = false;
    await Plotly.newPlot(place, figure.data, figure.layout, asked);
    await Plotly.relayout(place, coloured(figure, ground()));
    drawn.push([place, figure]);
  }
  const colour = colours => drawn.forEach(([place, figure]) => Plotly.relayout(place, coloured(figure, colours)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colour(ground()));
  addEventListener("beforeprint", () => drawn.forEach(
    ([place, figure]) => Plotly.relayout(place, {...coloured(figure, PAPER), width: 680, autosize: false})));
  addEventListener("afterprint", () => drawn.forEach(
    ([place, figure]) => Plotly.relayout(place, {...coloured(figure, ground()), width: null, autosize: true})));
}

async function all() {
  localTimes();
  if (!("DecompressionStream" in window)) throw new Error("this browser is from before 2023");
  const data = JSON.parse(await unpacked("data"));
  if (byId("table")) table(data);
  if (document.querySelector(".chart")) {
    const library = made("script", {textContent: await unpacked("library")});
    library.nonce = nonce;
    document.head.append(library);
    await plots(data);
  }
  document.documentElement.dataset.ready = "true";
}

all().catch(error => {
  const told = `Table and plots cannot be shown: ${error.message}. All findings are in findings.csv and findings.parquet.`;
  document.querySelector(".verdict").after(made("p", {className: "card", textContent: told}));
  throw error;
});
})();
