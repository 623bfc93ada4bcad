// The timeline: GPUs as rows, time across (EventCalendar's resource timeline).
// It only draws and reports what a pointer did; page.js decides what that means.
import { serverNow } from "../time.js";
import { barContent, barEvent, closedEvent, draftEvent, pastEvent } from "./bars.js";
import { RowSelection, gpusBetween } from "./pointer.js";
import { watchRoles } from "./roles.js";
import { resourcesOf, rowLabel, rowsOf } from "./rows.js";
import { addWall, offsetText, toWall, wallMillis } from "./zone.js";

const VIEWS = {
  day: { view: "resourceTimelineDay", slot: 3600, days: 1, narrowest: 34 },
  week: { view: "resourceTimelineWeek", slot: 6 * 3600, days: 7, narrowest: 22 },
};
const DAY = 86400;
const LABEL_PX = { day: 44, week: 20 };
const shown = (options) => new Intl.DateTimeFormat("en-GB", options);
const FORMATS = {
  day: [shown({ weekday: "long", day: "numeric", month: "long" }), shown({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" })],
  week: [shown({ weekday: "short", day: "numeric" }), shown({ hour: "2-digit", hourCycle: "h23" })],
};

export class Timeline {
  /** on: {pick(gpuIds, start, end), press(gpuIds, start), open(id), move(id, change), moveDraft(change)} */
  constructor(host, { store, draft, zone, gridSeconds, nowWall, view, date, on }) {
    Object.assign(this, { host, store, draft, zone, gridSeconds, nowWall, view, date, on });
    this.folded = new Set();
    this.drawn = new Map();
    const selection = new RowSelection(host, {
      choose: (a, b, start, end) => on.pick(gpusBetween(this.#rows(), a, b), start, end),
      press: (row, start) => on.press(gpusBetween(this.#rows(), row, row), start),
    });
    this.ec = selection.ec = window.EventCalendar.create(host, {
      ...this.#viewOptions(), ...selection.options(), ...this.#options(),
    });
    watchRoles(host, on.open);
    new ResizeObserver(() => this.#fit()).observe(host);
  }

  #options() {
    return {
      date: this.date, resources: [], events: [], firstDay: 1, locale: "en-GB",
      timeZone: offsetText(new Date(serverNow()), this.zone),
      headerToolbar: { start: "", center: "", end: "" }, nowIndicator: true, editable: true,
      eventGap: 2, eventResizableFromStart: true, longPressDelay: 350,
      dayHeaderFormat: (at) => FORMATS[this.view][0].format(at),
      slotLabelFormat: (at) => FORMATS[this.view][1].format(at),
      eventContent: ({ event }) => barContent(event, this),
      resourceLabelContent: ({ resource }) => ({ domNodes: [rowLabel(resource.extendedProps)] }),
      resourceExpand: ({ resource }) => this.folded[resource.expanded ? "delete" : "add"](resource.id),
      dragConstraint: ({ newResource }) => !newResource || Boolean(this.store.gpu(Number(newResource.id))?.bookable),
      eventDrop: (info) => this.#moved(info, info.delta.seconds, info.delta.seconds),
      eventResize: (info) => this.#moved(info, info.startDelta.seconds, info.endDelta.seconds),
    };
  }

  #viewOptions() {
    const { slot, view } = VIEWS[this.view];
    const snap = this.view === "week" ? Math.max(3600, this.gridSeconds) : this.gridSeconds;
    const scroll = Math.max(0, Number(this.nowWall().slice(11, 13)) - 2) * 3600;
    return { view, slotDuration: slot, slotLabelInterval: slot, snapDuration: snap, scrollTime: scroll };
  }

  /** [first wall, wall after the last] of what is in view. */
  range() {
    const back = this.view === "week" ? (new Date(wallMillis(`${this.date}T00:00`)).getUTCDay() + 6) % 7 : 0;
    const start = addWall(`${this.date}T00:00`, -back * DAY);
    return [start, addWall(start, VIEWS[this.view].days * DAY)];
  }

  show(view, date) {
    const other = view !== this.view;
    [this.view, this.date] = [view, date];
    if (other) {
      for (const [name, value] of Object.entries(this.#viewOptions())) this.ec.setOption(name, value);
    }
    this.ec.setOption("date", date);
    this.#fit();
  }

  /** Slots as wide as the room allows, never narrower than can be read. */
  #fit() {
    const { slot, days, narrowest } = VIEWS[this.view];
    const main = this.host.querySelector(".ec-main");
    const side = this.host.querySelector(".ec-sidebar");
    if (!main || !side || !main.clientWidth) return;
    const room = (main.clientWidth - side.offsetWidth) / ((days * DAY) / slot);
    const width = Math.max(narrowest, Math.floor(room * 100) / 100);
    if (Math.abs(width - this.ec.getOption("slotWidth")) <= 0.02) return;
    this.ec.setOption("slotWidth", width);
    this.ec.setOption("slotLabelInterval", slot * Math.ceil(LABEL_PX[this.view] / width));
  }

  #rows() {
    return rowsOf(this.store.groups(), this.folded);
  }

  drawRows() {
    this.ec.setOption("resources", resourcesOf(this.store.groups(), this.folded));
    requestAnimationFrame(() => this.#fit());
  }

  /** Bring the bars to what the store and the draft hold; touch only what changed. */
  drawBars() {
    const gpus = this.store.visibleGpus();
    const rowIds = gpus.map((gpu) => String(gpu.id));
    const events = this.store.visibleReservations().map((r) => barEvent(r, this.zone));
    events.push(draftEvent(this.draft), closedEvent(gpus, ...this.range()),
      pastEvent(rowIds, ...this.range(), this.nowWall()));
    const wanted = new Map(events.filter(Boolean).map((event) => [event.id, event]));
    for (const id of [...this.drawn.keys()].filter((known) => !wanted.has(known))) {
      this.ec.removeEventById(id);
      this.drawn.delete(id);
    }
    for (const event of wanted.values()) this.#put(event);
  }

  #put(event) {
    const print = JSON.stringify(event);
    const known = this.drawn.get(event.id);
    if (known === print) return;
    const focused = document.activeElement?.dataset.reservation;
    if (known === undefined) this.ec.addEvent(event);
    else this.ec.updateEvent(event);
    this.drawn.set(event.id, print);
    if (focused && `r${focused}` === event.id) {
      requestAnimationFrame(() => this.host.querySelector(`[data-reservation="${focused}"]`)?.focus());
    }
  }

  /** Put a bar back where its data says: after a drag that was refused. */
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
