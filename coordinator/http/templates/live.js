// An act that is under way is looked at again until it has ended. What has the focus stays as it is.
const again = document.querySelector("[data-again]");
async function look() {
  const answer = await fetch(again.dataset.again).catch(() => null);
  const text = answer === null || !answer.ok ? "" : await answer.text();
  const found = new DOMParser().parseFromString(text, "text/html").getElementById("work");
  if (found !== null && !again.contains(document.activeElement)) {
    again.replaceChildren(...found.childNodes);
    showLocalTimes(again);
  }
  if (found === null || "again" in found.dataset) setTimeout(look, 2000);
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
function listen() {
  if (source !== null) source.close();
  if (document.hidden) return;
  source = new EventSource(told.dataset.events);
  source.onmessage = (event) => Object.entries(JSON.parse(event.data)).forEach(([name, html]) => show(name, html));
  source.onerror = ({ target }) => {
    show("said", "The figures stand still: the service does not answer, or your login has ended.");
    if (target === source && target.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}
if (told !== null) {
  document.addEventListener("visibilitychange", listen);
  listen();
}
