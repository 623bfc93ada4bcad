// The booking being made (or the change to one's own): what the form, the
// timeline and the verdict all look at. Times are walls of the site's clock.
import { addWall, ceilWall, fromWall, toWall, wallSeconds } from "./zone.js";

const EMPTY = {
  open: false, gpuIds: [], start: "", end: "", purpose: "", membership: null,
  editing: null, plan: null, token: null,
};

export class Draft extends EventTarget {
  /** limits: {grid_seconds, longest_seconds}; membership: the one chosen at first. */
  constructor({ zone, limits, membership }) {
    super();
    this.zone = zone;
    this.limits = limits;
    Object.assign(this, EMPTY, { membership });
    this.lastSeconds = Math.min(2 * 3600, limits.longest_seconds);
  }

  /** Change some fields and tell whoever looks; `source` is who did it. */
  set(fields, source = "") {
    Object.assign(this, fields);
    if (this.start && this.end && wallSeconds(this.start, this.end) > 0) {
      this.lastSeconds = wallSeconds(this.start, this.end);
    }
    this.dispatchEvent(new CustomEvent("change", { detail: { source } }));
  }

  /** Begin a new booking; missing times are the next full grid step, as long as last time. */
  begin(fields = {}, source = "") {
    const now = toWall(new Date(), this.zone);
    const start = fields.start || ceilWall(now, this.limits.grid_seconds);
    this.set({
      ...EMPTY, membership: this.membership, purpose: this.editing ? "" : this.purpose,
      ...fields, start, end: fields.end || addWall(start, this.lastSeconds), open: true,
    }, source);
  }

  /** Change one's own Reservation instead of making a new one. */
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
    const others = this.gpuIds.filter((known) => known !== id);
    this.set({ gpuIds: wanted ? [...others, id] : others }, source);
  }

  setLength(seconds, source = "") {
    if (this.start) this.set({ end: addWall(this.start, seconds) }, source);
  }

  startAt() {
    return fromWall(this.start, this.zone);
  }

  endAt() {
    return fromWall(this.end, this.zone);
  }

  seconds() {
    return this.start && this.end ? (this.endAt() - this.startAt()) / 1000 : 0;
  }

  /** What is missing before the portal can be asked; "" when nothing is. */
  missing() {
    if (!this.gpuIds.length) return "Choose at least one GPU.";
    if (!this.start || !this.end) return "Choose a start and an end.";
    if (this.seconds() <= 0) return "The end is not after the start.";
    return "";
  }

  /** The body of the API's requests. */
  body() {
    return {
      membership: this.membership, gpu_ids: this.gpuIds, purpose: this.purpose,
      start: this.startAt().toISOString(), end: this.endAt().toISOString(),
      ...(this.token ? { token: this.token } : {}),
    };
  }
}
