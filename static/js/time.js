// Readable times: relative under a day, absolute on hover, in the
// zone of the page and by the server's clock.
//
// <time datetime="2026-11-21T14:00:00Z" data-time> is kept up to date.
// data-time="clock" shows "14:00" or "Wed 14:00". data-time="absolute" shows the full form.

import { gettext, locale } from "./words.js";

const root = document.documentElement;
export const siteZone = root.dataset.timeZone || "UTC";
// The server wrote its time when it answered, which may be long before this script ran.
const [visit] = performance.getEntriesByType("navigation");
const answeredMs = visit?.responseStart ? performance.timeOrigin + visit.responseStart : Date.now();
const offsetMs = Number(root.dataset.now) * 1000 - answeredMs || 0;

/** Now, by the server's clock, in milliseconds. */
export function serverNow() {
  return Date.now() + offsetMs;
}

const format = (options) =>
  new Intl.DateTimeFormat(locale, { timeZone: siteZone, hourCycle: "h23", ...options });
const CLOCK = format({ hour: "2-digit", minute: "2-digit" });
const WEEKDAY = format({ weekday: "short" });
const DAY = format({ weekday: "short", day: "numeric", month: "short" });
const FULL = format({
  weekday: "short", day: "numeric", month: "short", year: "numeric",
  hour: "2-digit", minute: "2-digit", timeZoneName: "short",
});
const DATE_KEY = format({ year: "numeric", month: "2-digit", day: "2-digit" });

const milliseconds = (value) => (value instanceof Date ? value.getTime() : Date.parse(value));

/** "Sat, 21 Nov 2026, 14:00 UTC" */
export function absolute(value) {
  return FULL.format(milliseconds(value));
}

/** "14:00" today, "Wed 14:00" within six days, "Wed 25 Nov 14:00" beyond. */
export function clock(value, nowMs = serverNow()) {
  const at = milliseconds(value);
  const time = CLOCK.format(at);
  if (DATE_KEY.format(at) === DATE_KEY.format(nowMs)) return time;
  if (Math.abs(at - nowMs) < 6 * 86_400_000) return `${WEEKDAY.format(at)} ${time}`;
  return `${DAY.format(at).replace(",", "")} ${time}`;
}

function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return gettext("{minutes} min", { minutes: Math.floor(seconds / 60) });
  const hours = Math.floor(seconds / 3600);
  const minutes = Math.floor((seconds % 3600) / 60);
  return hours < 6 && minutes ? gettext("{hours} h {minutes} min", { hours, minutes }) : `${hours} h`;
}

/** "in 2 h", "12 s ago". From a day on, the clock form. */
export function relative(value, nowMs = serverNow()) {
  const seconds = (milliseconds(value) - nowMs) / 1000;
  if (Math.abs(seconds) >= 86_400) return clock(value, nowMs);
  if (Math.abs(seconds) < 1) return gettext("now");
  return seconds > 0 ? gettext("in {span}", { span: span(seconds) }) : gettext("{span} ago", { span: span(-seconds) });
}

const FORMS = { "": relative, relative, clock, absolute };

/** Writes every <time data-time> under a node. */
export function writeTimes(under = document) {
  const nowMs = serverNow();
  for (const node of under.querySelectorAll("time[data-time]")) {
    const text = FORMS[node.dataset.time]?.(node.dateTime, nowMs);
    if (text === undefined) continue;
    if (node.textContent !== text) node.textContent = text;
    if (node.shownFor === node.dateTime) continue;
    node.shownFor = node.dateTime;
    node.title = absolute(node.dateTime);
  }
}

writeTimes();
setInterval(() => { if (!document.hidden) writeTimes(); }, 5000);
document.addEventListener("visibilitychange", () => { if (!document.hidden) writeTimes(); });
document.addEventListener("fragment-replaced", (event) => writeTimes(event.target));
