// A month as a grid of days: the free part of the GPUs in view, and the reader's
// bookings. A day opens the view of the day, a booking its details.
import { el, setVars } from "../dom.js";
import { clockOf, gpus as gpuCount, longDay, weekdays } from "./words.js";
import { addWall, fromWall, rangeOf, toWall, wallMillis } from "./zone.js";
import { gettext } from "../words.js";

const DAY = 86400;
const OWN_SHOWN = 3;
const LIVE = ["confirmed", "active"];

/** Returns the time in ms that spans ({start, end} in ms) cover within [from, until). */
export function covered(spans, from, until) {
  let sum = 0;
  let last = from;
  for (const { start, end } of spans) {
    const [a, b] = [Math.max(start, last), Math.min(end, until)];
    if (b > a) { sum += b - a; last = b; }
  }
  return sum;
}

export class Month {
  /** on: {open(id), day(date)} */
  constructor(node, { store, zone, nowWall, on }) {
    Object.assign(this, { node, store, zone, nowWall, on });
  }

  draw(date) {
    const month = date.slice(0, 7);
    const [first, last] = rangeOf("month", date);
    const gpus = this.store.visibleGpus().filter((gpu) => gpu.bookable);
    const busy = this.#busy(gpus);
    const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const cells = [];
    for (let day = first; day < last; day = addWall(day, DAY)) cells.push(this.#cell(day, month, gpus, busy));
    this.node.replaceChildren(
      el("div", { class: "month-head", "aria-hidden": "true" }, ...weekdays().map((text) => el("span", { text }))),
      el("ul", { class: "month-grid" }, ...cells));
    if (focused) this.node.querySelector(`[data-key="${focused}"]`)?.focus();
  }

  /** By GPU: spans in which it is held or closed, in order. */
  #busy(gpus) {
    const found = new Map(gpus.map((gpu) => [gpu.id, []]));
    const held = [...this.store.reservations.values()].filter((r) => LIVE.includes(r.state));
    for (const one of [...held, ...this.store.closures.filter((closure) => !closure.open)]) {
      const span = { start: Date.parse(one.start), end: Date.parse(one.end) };
      for (const id of one.gpu_ids) found.get(id)?.push(span);
    }
    for (const spans of found.values()) spans.sort((a, b) => a.start - b.start);
    return found;
  }

  /** Free part of the rest of a day, in percent. null for a day that is over. */
  #freePct(day, gpus, busy) {
    const now = fromWall(this.nowWall(), this.zone).getTime();
    const from = Math.max(fromWall(day, this.zone).getTime(), now);
    const until = fromWall(addWall(day, DAY), this.zone).getTime();
    if (until <= from || !gpus.length) return null;
    const whole = (until - from) * gpus.length;
    const taken = gpus.reduce((sum, gpu) => sum + covered(busy.get(gpu.id), from, until), 0);
    return Math.round((100 * (whole - taken)) / whole);
  }

  #cell(day, month, gpus, busy) {
    const date = day.slice(0, 10);
    const free = this.#freePct(day, gpus, busy);
    const words = free === null ? (gpus.length ? gettext("past") : gettext("no GPU")) : gettext("{percent} % free", { percent: free });
    const bar = el("span", { class: "month-bar", "aria-hidden": "true" });
    setVars(bar, { "--part": (free ?? 0) / 100 });
    const classes = ["month-day"];
    if (!date.startsWith(month)) classes.push("is-other");
    if (free === null) classes.push("is-over");
    if (date === this.nowWall().slice(0, 10)) classes.push("is-today");
    const own = this.store.visibleReservations()
      .filter((r) => r.mine && LIVE.includes(r.state))
      .map((r) => ({ r, start: toWall(r.start, this.zone), end: toWall(r.end, this.zone) }))
      .filter(({ start, end }) => start < addWall(day, DAY) && end > day)
      .sort((a, b) => wallMillis(a.start) - wallMillis(b.start));
    return el("li", { class: classes.join(" ") },
      el("button", {
        type: "button", class: "month-open", "data-key": date,
        "aria-current": classes.includes("is-today") ? "date" : null,
        on: { click: () => this.on.day(date) },
      }, el("span", { class: "month-number", text: String(Number(date.slice(8))) }),
      el("span", { class: "month-free", text: free === null ? "" : words }), free === null ? null : bar,
      el("span", { class: "visually-hidden", text: `${free === null ? words : ""} ${longDay(day)}` })),
      ...own.slice(0, OWN_SHOWN).map(({ r, start }) => el("button", {
        type: "button", class: "month-own", "data-key": `${date}r${r.id}`,
        on: { click: () => this.on.open(r.id) },
      }, `${start < day ? "…" : clockOf(start)} ${r.purpose || gpuCount(r.gpu_ids.length)}`)),
      own.length > OWN_SHOWN ? el("span", { class: "month-more", text: gettext("{n} more", { n: own.length - OWN_SHOWN }) }) : null);
  }
}
