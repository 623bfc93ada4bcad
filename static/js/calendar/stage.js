// Shows the bookings: the timeline, or on a phone the agenda. It requests the
// range in view, and draws again when the store, the draft or the minute changes.
import { toastProblem } from "../toast.js";
import { Agenda } from "./agenda.js";
import { Month } from "./month.js";
import { Timeline } from "./timeline/timeline.js";
import { fromWall, rangeOf } from "./zone.js";

const MINUTE_MS = 60_000;

export class Stage {
  /** common: {store, draft, zone, gridSeconds, nowWall, on}; shown: {view, date, ...} */
  constructor({ timelineNode, agendaNode, monthNode }, common, shown) {
    Object.assign(this, common, { timelineNode, agendaNode, monthNode, common, shown });
    this.month = new Month(monthNode, common);
    this.phone = matchMedia("(max-width: 46rem)");
    this.agenda = new Agenda(agendaNode, common);
    this.timeline = null;
    const { store, draft } = common;
    store.addEventListener("loaded", () => this.draw());
    store.addEventListener("changed", () => this.draw({ rows: false }));
    store.addEventListener("filtered", () => store.loaded && this.draw());
    draft.addEventListener("change", () => store.loaded && !this.phone.matches && this.shown.view !== "month" && this.timeline?.drawBars());
    this.phone.addEventListener("change", () => this.load());
    setInterval(() => store.loaded && this.#minute(), MINUTE_MS);
  }

  /** Moves a rolling day by an hour each hour. */
  #minute() {
    const [start] = this.#range();
    if (start === this.loadedFrom || this.timelineNode.querySelector(".ec-preview")) this.draw({ rows: false });
    else this.show(this.shown, true);
  }

  /** A phone's agenda shows one whole day of a week too. */
  #range() {
    const { view, date } = this.shown;
    if (this.phone.matches && view !== "month") return rangeOf("day", date);
    return rangeOf(view, date, this.common.nowWall());
  }

  draw({ rows = true } = {}) {
    const asMonth = this.shown.view === "month";
    const narrow = this.phone.matches;
    this.timelineNode.hidden = narrow || asMonth;
    this.agendaNode.hidden = !narrow || asMonth;
    this.monthNode.hidden = !asMonth;
    if (asMonth) {
      if (this.store.loaded) this.month.draw(this.shown.date);
      return;
    }
    if (narrow) {
      if (this.store.loaded) this.agenda.draw(this.shown.date);
      return;
    }
    if (!this.store.loaded) return;
    this.timeline ??= new Timeline(this.timelineNode, { ...this.common, ...this.shown });
    if (rows) this.timeline.drawRows();
    this.timeline.drawBars();
  }

  /** Show another day, view or filter. `moved`: the times changed, so request them. */
  show(shown, moved) {
    this.shown = shown;
    if (shown.view !== "month") this.timeline?.show(shown.view, shown.date);
    this.store.setFilters({ gpuClass: shown.gpuClass, minGib: shown.minGib, mine: shown.mine });
    if (moved) this.load();
  }

  /** Request the range in view. */
  async load() {
    const [start, end] = this.#range();
    this.loadedFrom = start;
    try {
      await this.store.load(fromWall(start, this.zone), fromWall(end, this.zone));
    } catch (error) {
      toastProblem(error);
    }
  }

  /** Scroll to the draft if it is out of view. */
  reveal() {
    requestAnimationFrame(() => {
      this.timelineNode.querySelector(".is-draft")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  }

  putBack(id) {
    this.timeline?.putBack(id);
  }
}
