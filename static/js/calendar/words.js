// Times and figures as text. Times are walls of the site's clock (see zone.js).
import { addWall, wallMillis, wallSeconds } from "./zone.js";
import { gettext, locale, ngettext } from "../words.js";

const DAY = 86400;
const utc = (options) => new Intl.DateTimeFormat(locale, { timeZone: "UTC", ...options });
const weekday = utc({ weekday: "short" });
const weekdayDate = utc({ weekday: "short", day: "numeric", month: "short" });
const longDate = utc({ weekday: "long", day: "numeric", month: "long", year: "numeric" });
const shortDate = utc({ day: "numeric", month: "short" });
const monthYear = utc({ month: "long", year: "numeric" });
const fullDate = utc({ day: "numeric", month: "short", year: "numeric" });

/** "14:00" */
export const clockOf = (wall) => wall.slice(11, 16);

/** "Saturday 21 November 2026" */
export const longDay = (wall) => longDate.format(wallMillis(wall));

/** "16 Nov – 22 Nov 2026": a number of days from one day on. */
export const daysOf = (wall, days) => {
  const last = addWall(wall, (days - 1) * DAY);
  return `${shortDate.format(wallMillis(wall))} – ${fullDate.format(wallMillis(last))}`;
};

/** "16 Nov – 22 Nov 2026": the week that begins on a day. */
export const weekOf = (wall) => daysOf(wall, 7);

/** "November 2026" */
export const monthOf = (wall) => monthYear.format(wallMillis(wall));

/** "today", "tomorrow", "Thu", or "Thu 26 Nov" when it is a week away or more. */
export function dayOf(wall, now) {
  const midnight = `${now.slice(0, 10)}T00:00`;
  const days = Math.floor(wallSeconds(midnight, wall) / DAY);
  if (days === 0) return gettext("today");
  if (days === 1) return gettext("tomorrow");
  if (days === -1) return gettext("yesterday");
  const format = days > 1 && days < 7 ? weekday : weekdayDate;
  return format.format(wallMillis(wall)).replace(",", "");
}

/** "today 14:00" */
export const moment = (wall, now) => `${dayOf(wall, now)} ${clockOf(wall)}`;

/** "Thu 26 Nov 14:00" */
export const dateClock = (wall) => `${weekdayDate.format(wallMillis(wall)).replace(",", "")} ${clockOf(wall)}`;

/** "today 14:00 – 18:00", or with both days if they differ. An end at midnight belongs to the day before. */
export function span(start, end, now) {
  const lastMinute = addWall(end, -60);
  if (lastMinute.slice(0, 10) === start.slice(0, 10)) {
    const until = clockOf(end) === "00:00" ? "24:00" : clockOf(end);
    return `${moment(start, now)} – ${until}`;
  }
  return `${moment(start, now)} – ${moment(end, now)}`;
}

/** "8", "8.5": at most one decimal. Small amounts by their first figure: "0.02". */
export function figure(number) {
  const size = Math.abs(number);
  return String(size >= 0.0001 && size < 0.095 ? Number(number.toPrecision(1)) : Math.round(number * 10) / 10);
}

/** "Mon" to "Sun" */
export const weekdays = () => [1, 2, 3, 4, 5, 6, 7].map((day) => weekday.format(Date.UTC(2024, 0, day)));

/** "1 GPU", "3 GPUs" */
export const gpus = (n) => ngettext("{n} GPU", "{n} GPUs", n);

/** "NVIDIA A100 80GB PCIe" is "A100 80GB": without the name of the manufacturer. */
export const shortClass = (name) => name.replace(/^NVIDIA\s+/, "").replace(/\s+(PCIe|SXM\d?)$/, "");

/** GPUs by node, in words: "node-a 0, 1 and node-b 3". */
export function gpuWords(found) {
  const nodes = new Map();
  for (const gpu of found) {
    if (!nodes.has(gpu.node)) nodes.set(gpu.node, []);
    nodes.get(gpu.node).push(gpu.index);
  }
  return [...nodes].map(([node, indexes]) => `${node} ${indexes.sort((a, b) => a - b).join(", ")}`)
    .join(gettext(" and "));
}

/** "1st", "2nd", "3rd", "4th", "11th" */
export function ordinal(n) {
  const tens = n % 100;
  const last = tens > 10 && tens < 14 ? 0 : n % 10;
  if (last === 1) return gettext("{n}st", { n });
  if (last === 2) return gettext("{n}nd", { n });
  return last === 3 ? gettext("{n}rd", { n }) : gettext("{n}th", { n });
}

/** "10 credits per hour": the price of a GPU outside peak hours. */
export const creditsPerHour = ({ weight }) => ngettext("{n} credit per hour", "{n} credits per hour", weight);
