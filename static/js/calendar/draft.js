// The new booking, or the change to one of the reader's bookings. Form, timeline and
// verdict read it. Times are walls of the site's clock.
import { addWall, ceilGrid, exact, floorGrid, toWall, wallSeconds } from "./zone.js";
import { gettext } from "../words.js";

const EMPTY = {
  open: false, gpuIds: [], start: "", end: "", purpose: "", membership: null,
  editing: null, plan: null, voucher: null,
};

export class Draft extends EventTarget {
  /** limits: {grid_seconds, longest_seconds}. membership: the first choice.
   *  nowWall(): the wall of the site's clock. partners(id): the GPUs that are only booked with a GPU. */
  constructor({ zone, limits, membership, nowWall, partners = () => [] }) {
    super();
    Object.assign(this, { zone, limits, nowWall, partners });
    Object.assign(this, EMPTY, { membership });
    this.lastSeconds = Math.min(2 * 3600, limits.longest_seconds);
  }

  /** Change some fields and notify the listeners. `source` is the module that changed them. */
  set(fields, source = "") {
    Object.assign(this, fields);
    if ("gpuIds" in fields) this.gpuIds = [...new Set(fields.gpuIds.flatMap((id) => [id, ...this.partners(id)]))];
    // Keep the chosen length, without the seconds that rounding the end adds.
    if (!("lastSeconds" in fields) && this.start && this.end && wallSeconds(this.start, this.end) > 0) {
      this.lastSeconds = wallSeconds(this.start, this.end);
    }
    this.dispatchEvent(new CustomEvent("change", { detail: { source } }));
  }

  /** Begin a new booking. Without times it starts at the next grid step and has the last length. */
  begin(fields = {}, source = "") {
    const start = fields.start || ceilGrid(this.nowWall(), this.limits.grid_seconds, this.zone);
    const times = fields.end ? { end: fields.end } : { end: this.endOf(start), lastSeconds: this.lastSeconds };
    this.set({
      ...EMPTY, membership: this.membership, purpose: this.editing ? "" : this.purpose,
      ...fields, start, ...times, open: true,
    }, source);
  }

  /** Change a Reservation of the reader instead of making a new one. */
  edit(reservation, fields = {}, source = "") {
    this.set({
      ...EMPTY, open: true, membership: reservation.membership ?? this.membership,
      gpuIds: [...reservation.gpu_ids], purpose: reservation.purpose ?? "",
      start: toWall(reservation.start, this.zone), end: toWall(reservation.end, this.zone),
      editing: reservation, ...fields,
    }, source);
  }

  close(source = "") {
    this.set({ ...EMPTY, membership: this.membership }, source);
  }

  toggleGpu(id, wanted, source = "") {
    const gone = new Set([id, ...this.partners(id)]);
    const others = this.gpuIds.filter((known) => !gone.has(known));
    this.set({ gpuIds: wanted ? [...others, id] : others }, source);
  }

  /** Returns the end of a booking with this length, rounded up to the grid if the start lies between
   *  two steps ("now"), or down if it would be longer than allowed. */
  endOf(start, seconds = this.lastSeconds) {
    const { grid_seconds: grid, longest_seconds: longest } = this.limits;
    const end = ceilGrid(addWall(start, seconds), grid, this.zone);
    return wallSeconds(start, end) <= longest ? end : floorGrid(addWall(start, longest), grid, this.zone);
  }

  /** Move the start and keep the length. */
  setStart(start, source = "") {
    this.set({ start, end: this.endOf(start), lastSeconds: this.lastSeconds }, source);
  }

  setLength(seconds, source = "") {
    if (this.start) this.set({ end: this.endOf(this.start, seconds), lastSeconds: seconds }, source);
  }

  startAt() {
    return exact(this.start, this.editing?.start, this.zone);
  }

  endAt() {
    return exact(this.end, this.editing?.end, this.zone);
  }

  seconds() {
    return this.start && this.end ? (this.endAt() - this.startAt()) / 1000 : 0;
  }

  /** Returns what is missing for a request to the portal. "" if nothing is. */
  missing() {
    if (!this.gpuIds.length) return gettext("Choose at least one GPU.");
    if (!this.start || !this.end) return gettext("Choose a start and an end.");
    if (this.backwards()) return gettext("The end is not after the start.");
    return "";
  }

  /** Returns true if both times are there and the end is not after the start. */
  backwards() {
    return Boolean(this.start && this.end) && this.seconds() <= 0;
  }

  /** Returns the changed fields of a Reservation, for the API. {} without a change. */
  changes() {
    const { editing } = this;
    const body = {};
    if (toWall(editing.start, this.zone) !== this.start) body.start = this.startAt().toISOString();
    if (toWall(editing.end, this.zone) !== this.end) body.end = this.endAt().toISOString();
    if (String([...editing.gpu_ids].sort()) !== String([...this.gpuIds].sort())) body.gpu_ids = this.gpuIds;
    if ((editing.purpose ?? "") !== this.purpose) body.purpose = this.purpose;
    return body;
  }

  /** Returns the body of the API's requests for a new booking and for its preview. */
  body() {
    return {
      membership: this.membership, gpu_ids: this.gpuIds, purpose: this.purpose,
      start: this.startAt().toISOString(), end: this.endAt().toISOString(),
      ...(this.voucher ? { voucher: this.voucher } : {}),
    };
  }
}
