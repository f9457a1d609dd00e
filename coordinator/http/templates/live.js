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
