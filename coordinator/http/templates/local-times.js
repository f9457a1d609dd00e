// Puts the browser's own time beside each one in UTC.
for (const each of document.querySelectorAll("time")) {
  const at = new Date(each.dateTime);
  if (at.getTimezoneOffset() === 0) continue;
  const own = document.createElement("span");
  own.className = "local";
  own.textContent = ` ${at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" })} here`;
  each.after(own);
}
