// The toolbar: view, day and filter of the GPUs.
import { el } from "../dom.js";
import { gib } from "../format.js";
import { daysOf, longDay, monthOf, shortClass, weekOf } from "./words.js";
import { addWall, mondayOf } from "./zone.js";
import { gettext } from "../words.js";

const DAY = 86400;

function titleOf({ view, date }) {
  if (view === "week") return weekOf(mondayOf(date));
  if (view === "month") return monthOf(`${date}T00:00`);
  return view === "4days" ? daysOf(`${date}T00:00`, 4) : longDay(`${date}T00:00`);
}

export class Toolbar {
  /** shown: {view, date, gpuClass, minGib, mine}. change(fields, step) is called on a change. */
  constructor(node, { store, today, shown, change }) {
    Object.assign(this, { node, store, today, shown, change });
    const find = (selector) => node.querySelector(selector);
    [this.title, this.date] = [find("#range-title"), find("#go-date")];
    [this.classes, this.sizes, this.mine] = [find("#class"), find("#min-gib"), find("#mine")];
    find("#back").addEventListener("click", () => this.go(-1));
    find("#forth").addEventListener("click", () => this.go(1));
    find("#today").addEventListener("click", () => change({ date: today() }, true));
    this.date.addEventListener("change", () => this.date.value && change({ date: this.date.value }, true));
    for (const radio of node.querySelectorAll("[name=view]")) {
      radio.addEventListener("change", () => change({ view: radio.value }, true));
    }
    this.classes.addEventListener("change", () => change({ gpuClass: this.classes.value }));
    this.sizes.addEventListener("change", () => change({ minGib: Number(this.sizes.value) }));
    this.mine.addEventListener("click", () => change({ mine: !this.shown.mine }));
    store.addEventListener("loaded", () => this.#choices());
  }

  /** Moves one view back (-1) or forward (1). */
  go(way) {
    const { view, date } = this.shown;
    const days = { day: 1, "4days": 4, week: 7 }[view];
    // A month forward or back: by its first day, or by the day before that.
    const first = `${date.slice(0, 7)}-01T00:00`;
    const to = days ? addWall(`${date}T00:00`, way * days * DAY) : addWall(first, way > 0 ? 31 * DAY : -DAY);
    this.change({ date: days ? to.slice(0, 10) : `${to.slice(0, 7)}-01` }, true);
  }

  /** Offer the classes and sizes that exist. */
  #choices() {
    const fill = (select, choices) => {
      const known = new Set([...select.options].map((option) => option.value));
      for (const [value, text] of choices) {
        if (!known.has(String(value))) select.append(el("option", { value, text }));
      }
    };
    const sizes = [...new Set(this.store.gpus.map((gpu) => Math.floor(gpu.memory_total_bytes / 2 ** 30)).filter(Boolean))];
    fill(this.classes, [...new Set(this.store.gpus.map((gpu) => gpu.gpu_class))].map((name) => [name, shortClass(name)]));
    fill(this.sizes, sizes.sort((a, b) => a - b).map((size) => [size, `≥ ${gib(size * 2 ** 30)}`]));
    this.draw(this.shown);
  }

  draw(shown) {
    this.shown = shown;
    this.title.textContent = titleOf(shown);
    // Text that is being typed stays while the calendar loads.
    if (document.activeElement !== this.date || this.drawnDate !== shown.date) this.date.value = shown.date;
    this.drawnDate = shown.date;
    this.node.querySelector(`[name=view][value="${shown.view}"]`).checked = true;
    this.classes.value = shown.gpuClass;
    this.sizes.value = shown.minGib ? String(shown.minGib) : "";
    this.mine.setAttribute("aria-pressed", String(shown.mine));
    const [back, forth] = {
      day: [gettext("Previous day"), gettext("Next day")],
      "4days": [gettext("Previous 4 days"), gettext("Next 4 days")],
      week: [gettext("Previous week"), gettext("Next week")],
      month: [gettext("Previous month"), gettext("Next month")],
    }[shown.view];
    this.node.querySelector("#back").setAttribute("aria-label", back);
    this.node.querySelector("#forth").setAttribute("aria-label", forth);
  }
}
