// The calendar on a phone: one day, a line per GPU with its day as a strip, and
// below it the bookings and the free times as buttons.
import { el, setVars } from "../dom.js";
import { duration, gib } from "../format.js";
import { icon } from "../icons.js";
import { barClasses, barSentence, barSign, owner } from "./timeline/bars.js";
import { closureItem } from "./timeline/closures.js";
import { ghostItems } from "./timeline/ghosts.js";
import { clockOf, shortClass } from "./words.js";
import { addWall, ceilGrid, floorGrid, toWall, wallSeconds } from "./zone.js";
import { gettext } from "../words.js";
import { kindWord } from "../state_words.js";

const DAY = 86400;

export class Agenda {
  /** on: {open(id), pick(gpuIds, start, end)} */
  constructor(node, { store, zone, gridSeconds, nowWall, on }) {
    Object.assign(this, { node, store, zone, gridSeconds, nowWall, on });
    // By GPU: the reader's choice. Without a choice, GPUs with a booking of the reader are unfolded.
    this.unfolded = new Map();
  }

  draw(date) {
    this.date = date;
    const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.node.replaceChildren(...this.store.groups().map((group) => el("section", { class: "agenda-group" },
      el("h2", { class: "agenda-node" }, group.node,
        el("span", { class: "muted", text: [`${group.gpus.length} × ${shortClass(group.gpuClass)}`, group.gpus[0].memory_total_bytes && gib(group.gpus[0].memory_total_bytes)].filter(Boolean).join(", ") })),
      ...group.gpus.map((gpu) => this.#gpu(gpu)))));
    if (focused) this.node.querySelector(`[data-key="${focused}"]`)?.focus();
  }

  /** Bookings of one GPU on that day, by start, cut to the day. */
  #entries(gpu) {
    const [first, last] = [`${this.date}T00:00`, addWall(`${this.date}T00:00`, DAY)];
    const found = [
      ...this.store.visibleReservations().map((r) => ({ r, ...r })),
      ...this.store.closures.map((c) => ({ c, ...c })),
    ];
    return found.filter((one) => one.gpu_ids.includes(gpu.id))
      .map(({ r, c, start, end }) => ({ r, c, start: toWall(start, this.zone), end: toWall(end, this.zone) }))
      .filter(({ start, end }) => start < last && end > first)
      .map((entry) => ({ ...entry, start: entry.start < first ? first : entry.start, end: entry.end > last ? last : entry.end }))
      .sort((a, b) => (a.start < b.start ? -1 : 1));
  }

  /** Free times from now on, at least one grid step long. */
  #gaps(entries) {
    const last = addWall(`${this.date}T00:00`, DAY);
    const now = ceilGrid(this.nowWall(), this.gridSeconds, this.zone);
    let from = now > `${this.date}T00:00` ? now : `${this.date}T00:00`;
    const gaps = [];
    for (const { start, end } of [...entries, { start: last, end: last }]) {
      if (start > from && wallSeconds(from, start) >= this.gridSeconds) gaps.push({ start: from, end: start });
      if (end > from) from = end;
    }
    return gaps;
  }

  #gpu(gpu) {
    const entries = this.#entries(gpu);
    const gaps = gpu.bookable ? this.#gaps(entries) : [];
    const fold = el("details", { class: "agenda-gpu", open: this.unfolded.get(gpu.id) ?? entries.some(({ r }) => r?.mine) },
      el("summary", { "data-key": `g${gpu.id}` },
        el("span", { class: "agenda-index", text: gettext("GPU {index}", { index: gpu.index }) }),
        el("span", { class: "agenda-note", text: this.#note(gpu, entries, gaps) }),
        this.#strip(entries), icon("chevron-down")),
      el("ul", { class: "agenda-list" }, ...[...entries, ...gaps]
        .sort((a, b) => (a.start < b.start ? -1 : 1))
        .map((item) => el("li", {}, item.r ? this.#booked(item)
          : item.c ? closureItem(item.c, this.zone) : this.#free(gpu, item))),
      ...ghostItems(this.store.waiting, gpu, this.date, this.zone).map((line) => el("li", {}, line))));
    fold.querySelector("summary").addEventListener("click", () => this.unfolded.set(gpu.id, !fold.open));
    return fold;
  }

  #note(gpu, entries, gaps) {
    if (!gpu.bookable) return gpu.out_reason || gettext("not available");
    const now = this.nowWall();
    const holder = entries.find(({ start, end }) => start <= now && end > now);
    if (holder) return gettext("{who} until {time}", { who: holder.r ? owner(holder.r) : gettext("closed"), time: this.#until(holder.end) });
    if (!gaps.length) return this.date < now.slice(0, 10) ? gettext("past") : gettext("no free time");
    const soon = gaps[0].start <= ceilGrid(now, this.gridSeconds, this.zone);
    return soon ? gettext("free until {time}", { time: this.#until(gaps[0].end) }) : gettext("free from {time}", { time: clockOf(gaps[0].start) });
  }

  #until(wall) {
    return clockOf(wall) === "00:00" ? "24:00" : clockOf(wall);
  }

  #strip(entries) {
    const midnight = `${this.date}T00:00`;
    const part = (start, end, className) => {
      const bar = el("span", { class: className });
      setVars(bar, { "--from": wallSeconds(midnight, start) / DAY, "--part": wallSeconds(start, end) / DAY });
      return bar;
    };
    const strip = el("span", { class: "strip", "aria-hidden": "true" },
      ...entries.map(({ r, c, start, end }) => part(start, end, `strip-bar ${r ? barClasses(r).join(" ") : `is-closure is-${c.kind}`}`)));
    const now = this.nowWall();
    if (now.startsWith(this.date)) strip.append(part(now, now, "strip-now"));
    return strip;
  }

  #booked({ r, start, end }) {
    const gpus = r.gpu_ids.map((id) => this.store.gpu(id)).filter(Boolean);
    return el("button", {
      type: "button", class: `agenda-item ${barClasses(r).join(" ")}`, "data-key": `r${r.id}`,
      on: { click: () => this.on.open(r.id) },
    }, el("span", { class: "agenda-time", text: `${clockOf(start)}–${this.#until(end)}` }),
    el("span", { class: "grow truncate", text: (r.mine && r.purpose) || owner(r) }),
    barSign(r) ? icon(barSign(r)) : null, el("span", { class: "agenda-kind", text: kindWord(r.kind) }),
    el("span", { class: "visually-hidden", text: barSentence(r, gpus, this.zone, this.nowWall()) }));
  }

  #grid(round, wall) { return round(wall, this.gridSeconds, this.zone); }

  #free(gpu, { start, end }) {
    return el("button", {
      type: "button", class: "agenda-item agenda-free", "data-key": `f${gpu.id}${start}`,
      on: { click: () => this.on.pick([gpu.id], this.#grid(ceilGrid, start), this.#grid(floorGrid, end)) },
    }, el("span", { class: "agenda-time", text: `${clockOf(start)}–${this.#until(end)}` }),
    el("span", { class: "grow", text: gettext("{time} free", { time: duration(wallSeconds(start, end)) }) }), icon("plus"), gettext("Book"));
  }
}
