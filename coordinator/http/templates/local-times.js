// Puts the browser's own time beside each one in UTC.
function showLocalTimes(within) {
  for (const each of within.querySelectorAll("time")) {
    const at = new Date(each.dateTime);
    if (at.getTimezoneOffset() === 0) continue;
    const own = document.createElement("span");
    own.className = "local";
    own.textContent = ` ${at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" })} here`;
    each.after(own);
  }
}
showLocalTimes(document);
