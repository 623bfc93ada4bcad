// The timeline: GPUs as rows, time across (EventCalendar's resource timeline).
// It only draws and reports pointer events. page.js decides what they mean.
import { serverNow } from "../../time.js";
import { barContent, barEvent } from "./bars.js";
import { groundEvents } from "./ground.js";
import { RowSelection, gpusBetween } from "./pointer.js";
import { watchRoles } from "./roles.js";
import { foldedAtFirst, resourcesOf, rowLabel, rowsOf, tellClosed, tellFree } from "./rows.js";
import { addWall, offsetText, rangeOf, toWall, wallMillis } from "../zone.js";
import { locale } from "../../words.js";

const VIEWS = {
  day: { view: "resourceTimelineDay", slot: 3600, days: 1, narrowest: 34 },
  "4days": { view: "fourDays", slot: 4 * 3600, days: 4, narrowest: 26 },
  week: { view: "resourceTimelineWeek", slot: 6 * 3600, days: 7, narrowest: 22 },
};
const DAY = 86400;
const ROOMY_ROWS = 18;
const FEW = 20; // with more changes a new list is faster than single changes
const LABEL_PX = { day: 44, "4days": 20, week: 20 };
const shown = (options) => new Intl.DateTimeFormat(locale, options);
const NEW_DAY = shown({ weekday: "short", day: "numeric" });
const HOUR = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", hourCycle: "h23" }); // bare digits: slots are narrow
const FORMATS = {
  day: [shown({ weekday: "long", day: "numeric", month: "long" }), shown({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" })],
  "4days": [shown({ weekday: "short", day: "numeric", month: "short" }), HOUR],
  week: [shown({ weekday: "short", day: "numeric" }), HOUR],
};

export class Timeline {
  /** on: {pick(gpuIds, start, end), press(gpuIds, start), open(id), move(id, change), moveDraft(change)} */
  constructor(host, { store, draft, zone, gridSeconds, nowWall, view, date, on }) {
    Object.assign(this, { host, store, draft, zone, gridSeconds, nowWall, view, date, on });
    this.folded = foldedAtFirst(store.groups(), store.visibleReservations());
    this.drawn = new Map();
    const selection = new RowSelection(host, {
      choose: (a, b, start, end) => on.pick(gpusBetween(this.#rows(), a, b), start, end),
      press: (row, start) => on.press(gpusBetween(this.#rows(), row, row), start),
    });
    this.ec = selection.ec = window.EventCalendar.create(host, {
      ...this.#viewOptions(), ...selection.options(), ...this.#options(),
    });
    host.dataset.view = this.view;
    host.style.setProperty("--zone", JSON.stringify(zone));
    watchRoles(host, on.open);
    new ResizeObserver(() => this.#fit()).observe(host);
  }

  #options() {
    return {
      date: rangeOf(this.view, this.date, this.nowWall())[0].slice(0, 10), resources: [], events: [], firstDay: 1, locale,
      timeZone: offsetText(new Date(serverNow()), this.zone),
      headerToolbar: { start: "", center: "", end: "" }, nowIndicator: true, editable: true,
      eventGap: 2, eventResizableFromStart: true, longPressDelay: 350,
      dayHeaderFormat: (at) => FORMATS[this.view][0].format(at),
      views: { fourDays: { type: "resourceTimelineDay", duration: { days: 4 } } },
      slotLabelFormat: (at) => (this.view === "day" && !at.getHours() && !at.getMinutes() ? NEW_DAY : FORMATS[this.view][1]).format(at),
      eventContent: ({ event }) => barContent(event, this),
      resourceLabelContent: ({ resource }) => ({ domNodes: [rowLabel(resource.extendedProps)] }),
      resourceExpand: ({ resource: { id, expanded } }) => {
        this.folded[expanded ? "delete" : "add"](id); this.drawBars();
      },
      dragConstraint: ({ newResource }) => !newResource || Boolean(this.store.gpu(Number(newResource.id))?.bookable),
      eventDrop: (info) => this.#moved(info, info.delta.seconds, info.delta.seconds),
      eventResize: (info) => this.#moved(info, info.startDelta.seconds, info.endDelta.seconds),
    };
  }

  #viewOptions() {
    const { slot, view } = VIEWS[this.view];
    const snap = this.view === "day" ? this.gridSeconds : Math.max(3600, this.gridSeconds);
    const scroll = Math.max(0, Number(this.nowWall().slice(11, 13)) - 2) * 3600;
    // A rolling day begins at another hour and ends after midnight.
    const [start] = rangeOf(this.view, this.date, this.nowWall());
    const first = (wallMillis(start) - wallMillis(`${start.slice(0, 10)}T00:00`)) / 1000;
    return {
      view, slotDuration: slot, slotLabelInterval: slot, snapDuration: snap,
      scrollTime: first || scroll, slotMinTime: first, slotMaxTime: first + DAY,
    };
  }

  show(view, date) {
    [this.view, this.date] = [view, date];
    const options = { ...this.#viewOptions(), date: rangeOf(view, date, this.nowWall())[0].slice(0, 10) };
    const print = JSON.stringify(options);
    if (print === this.shownOptions) return;
    this.shownOptions = print;
    this.host.dataset.view = view;
    for (const [name, value] of Object.entries(options)) this.ec.setOption(name, value);
    // The new options put a label on each slot again, however narrow it is.
    this.#fit({ relabel: true });
  }

  /** Makes slots as wide as possible, and never too narrow to read. */
  #fit({ relabel = false } = {}) {
    const { slot, days, narrowest } = VIEWS[this.view];
    const main = this.host.querySelector(".ec-main");
    const side = this.host.querySelector(".ec-sidebar");
    if (!main || !side || !main.clientWidth) return;
    const room = (main.clientWidth - side.offsetWidth) / ((days * DAY) / slot);
    const width = Math.max(narrowest, Math.floor(room * 100) / 100);
    if (!relabel && Math.abs(width - this.ec.getOption("slotWidth")) <= 0.02) return;
    this.ec.setOption("slotWidth", width);
    this.ec.setOption("slotLabelInterval", slot * Math.ceil(LABEL_PX[this.view] / width));
  }

  #rows() { return rowsOf(this.store.groups(), this.folded); }

  drawRows() {
    const print = JSON.stringify(this.store.groups());
    if (print === this.drawnRows) return;
    this.drawnRows = print;
    this.ec.setOption("resources", resourcesOf(this.store.groups(), this.folded));
    this.host.classList.toggle("is-dense", this.#rows().length > ROOMY_ROWS);
    requestAnimationFrame(() => {
      this.#tellNow();
      this.#fit();
    });
  }

  /** Update the bars from the store and the draft. Only changed bars are touched. */
  drawBars() {
    const drawn = new Set(this.#rows().map((row) => row.id));
    const gpus = this.store.visibleGpus().filter((gpu) => drawn.has(String(gpu.id)));
    const events = this.store.visibleReservations()
      .filter((r) => r.gpu_ids.some((id) => drawn.has(String(id))))
      .map((r) => barEvent(r, this.zone));
    events.push(...groundEvents(this, gpus, this.store.groups().map((group) => group.key)));
    const wanted = new Map(events.map((event) => [event.id, event]));
    const prints = new Map([...wanted].map(([id, event]) => [id, JSON.stringify(event)]));
    const gone = [...this.drawn.keys()].filter((id) => !wanted.has(id));
    const changed = [...wanted.keys()].filter((id) => this.drawn.get(id) !== prints.get(id));
    if (gone.length + changed.length > FEW) {
      this.ec.setOption("events", [...wanted.values()]);
    } else {
      for (const id of gone) this.ec.removeEventById(id);
      for (const id of changed) this.#put(wanted.get(id));
    }
    this.drawn = prints;
    this.#tellNow();
  }

  /** Update what the rows show about now. */
  #tellNow() {
    const now = new Date(serverNow());
    tellFree(this.host, this.store, now);
    tellClosed(this.host, this.store, now, this.nowWall(), this.zone);
  }

  #put(event) {
    const focused = document.activeElement?.dataset.reservation;
    if (this.drawn.has(event.id)) this.ec.updateEvent(event);
    else this.ec.addEvent(event);
    if (focused && `r${focused}` === event.id) {
      requestAnimationFrame(() => this.host.querySelector(`[data-reservation="${focused}"]`)?.focus());
    }
  }

  /** Put a bar back to the place in its data, after a refused drag. */
  putBack(id) {
    if (this.drawn.has(`r${id}`)) this.drawn.set(`r${id}`, "");
    this.drawBars();
  }

  #moved({ event }, startSeconds, endSeconds) {
    const gpuIds = event.resourceIds.map(Number);
    const { reservation } = event.extendedProps;
    const from = reservation ? { start: toWall(reservation.start, this.zone), end: toWall(reservation.end, this.zone) } : this.draft;
    const change = { gpuIds, start: addWall(from.start, startSeconds), end: addWall(from.end, endSeconds) };
    if (reservation) this.on.move(reservation.id, change);
    else this.on.moveDraft(change);
  }
}
