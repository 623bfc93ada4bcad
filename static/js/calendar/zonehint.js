// The zone that the calendar shows, and its difference from the browser's zone.
import { serverNow } from "../time.js";
import { offsetMinutes } from "./zone.js";
import { gettext } from "../words.js";

/** "1 h", "30 min", "5 h 30 min" */
function apart(minutes) {
  const [hours, rest] = [Math.floor(minutes / 60), minutes % 60];
  return [hours ? `${hours} h` : "", rest ? gettext("{minutes} min", { minutes: rest }) : ""].filter(Boolean).join(" ");
}

/** "Times are in UTC.", and the difference if the browser's zone differs now. */
export function zoneWords(zone, own = Intl.DateTimeFormat().resolvedOptions().timeZone) {
  const at = new Date(serverNow());
  const more = offsetMinutes(at, own) - offsetMinutes(at, zone);
  if (!more) return gettext("Times are in {zone}.", { zone });
  const apartWords = apart(Math.abs(more));
  return more > 0
    ? gettext("Times are in {zone}. Your browser’s clock ({own}) is {apart} ahead.", { zone, own, apart: apartWords })
    : gettext("Times are in {zone}. Your browser’s clock ({own}) is {apart} behind.", { zone, own, apart: apartWords });
}

export function showZone(node, zone) {
  node.textContent = zoneWords(zone);
}
