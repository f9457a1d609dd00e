// An act that is under way is looked at again until it has ended; where that cannot be seen, its page says why. What
// has the focus stays as it is.
const again = document.querySelector("[data-again]");
async function look() {
  const answer = await fetch(again.dataset.again).catch(() => null);
  const text = answer === null ? "" : await answer.text().catch(() => "");
  const found = new DOMParser().parseFromString(text, "text/html");
  const work = found.getElementById("work");
  const focused = again.contains(document.activeElement);
  if (work !== null && !focused) {
    again.replaceChildren(...work.childNodes);
    showLocalTimes(again);
    if ("again" in work.dataset) setTimeout(look, 2000);
    return;
  }
  const status = again.querySelector("[role=status]");
  const told = work === null ? null : work.querySelector("[role=status]");
  status.className = told === null ? "wrong" : told.className;
  if (told !== null) {
    status.textContent = told.textContent;
  } else if (answer !== null && answer.status === 401) {
    const login = document.createElement("a");
    Object.assign(login, { href: again.dataset.again, textContent: "log in again" });
    status.replaceChildren("You are logged out: ", login, ".");
    return;
  } else if (answer !== null && answer.status < 500 && !answer.ok) {
    status.textContent = found.querySelector("[role=alert]")?.textContent ?? answer.statusText;
    return;
  } else {
    status.textContent = "The service does not answer.";
  }
  setTimeout(look, 2000);
}
if (again !== null) setTimeout(look, 2000);

// Figures come as events, by the names of their elements, in HTML that the service has made. A page that is not seen
// listens to none: a browser has few connections.
const told = document.querySelector("[data-events]");
const last = new Map();
let source = null;
function show(name, html) {
  const place = document.querySelector(`[data-live="${name}"]`);
  if (place === null || last.get(name) === html || place.contains(document.activeElement)) return;
  last.set(name, html);
  place.innerHTML = html;
  showLocalTimes(place);
}
// What was right when the page was loaded may not be so any more.
function doubt() {
  const right = document.getElementById("right");
  if (right === null) return;
  right.className = "soft";
  right.textContent = "Something may need a person by now: load this page anew.";
}
function listen() {
  if (source !== null) source.close();
  if (document.hidden) return;
  source = new EventSource(told.dataset.events);
  source.onmessage = (event) => {
    Object.entries(JSON.parse(event.data)).forEach(([name, html]) => show(name, html));
    if (told.querySelector("strong") !== null) doubt();
  };
  source.onerror = ({ target }) => {
    show("said", "The figures stand still: the service does not answer, or your login has ended.");
    doubt();
    if (target === source && target.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}
if (told !== null) {
  document.addEventListener("visibilitychange", listen);
  listen();
}
