// What shows the bookings: the timeline, or on a phone the agenda. It asks for the
// range in view and draws again when the store, the draft or the minute changes.
import { toastProblem } from "../toast.js";
import { Agenda } from "./agenda.js";
import { Timeline } from "./timeline.js";
import { fromWall, rangeOf } from "./zone.js";

const MINUTE_MS = 60_000;

export class Stage {
  /** common: {store, draft, zone, gridSeconds, nowWall, on}; shown: {view, date, ...} */
  constructor(timelineNode, agendaNode, common, shown) {
    Object.assign(this, common, { timelineNode, agendaNode, common, shown });
    this.phone = matchMedia("(max-width: 46rem)");
    this.agenda = new Agenda(agendaNode, common);
    this.timeline = null;
    const { store, draft } = common;
    store.addEventListener("loaded", () => this.draw());
    store.addEventListener("changed", () => this.draw({ rows: false }));
    store.addEventListener("filtered", () => store.loaded && this.draw());
    draft.addEventListener("change", () => store.loaded && !this.phone.matches && this.timeline?.drawBars());
    this.phone.addEventListener("change", () => this.load());
    setInterval(() => store.loaded && this.draw({ rows: false }), MINUTE_MS);
  }

  draw({ rows = true } = {}) {
    const narrow = this.phone.matches;
    this.timelineNode.hidden = narrow;
    this.agendaNode.hidden = !narrow;
    if (narrow) {
      if (this.store.loaded) this.agenda.draw(this.shown.date);
      return;
    }
    if (!this.store.loaded) return;
    this.timeline ??= new Timeline(this.timelineNode, { ...this.common, ...this.shown });
    if (rows) this.timeline.drawRows();
    this.timeline.drawBars();
  }

  /** Show another day, view or filter; `moved`: other times, so ask for them. */
  show(shown, moved) {
    this.shown = shown;
    this.timeline?.show(shown.view, shown.date);
    this.store.setFilters({ gpuClass: shown.gpuClass, minGib: shown.minGib, mine: shown.mine });
    if (moved) this.load();
  }

  /** Ask for the range in view; a phone's agenda shows one day of a week too. */
  async load() {
    const [start, end] = this.phone.matches ? rangeOf("day", this.shown.date) : rangeOf(this.shown.view, this.shown.date);
    try {
      await this.store.load(fromWall(start, this.zone), fromWall(end, this.zone));
    } catch (error) {
      toastProblem(error);
    }
  }

  /** Scroll to the draft where it lies outside of what is seen. */
  reveal() {
    requestAnimationFrame(() => {
      this.timelineNode.querySelector(".is-draft")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  }

  putBack(id) {
    this.timeline?.putBack(id);
  }
}
