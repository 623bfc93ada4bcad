// Actions on a Reservation. Each shows its result and a way to undo it.
import { api } from "../api.js";
import { ask, toast, toastRefusedEnd } from "../toast.js";
import { gpuWords, span } from "./words.js";
import { addWall, ceilGrid, fromWall, toWall } from "./zone.js";
import { gettext } from "../words.js";

export class Actions {
  constructor({ store, zone, nowWall, gridSeconds }) {
    Object.assign(this, { store, zone, nowWall, gridSeconds });
  }

  /** "node-a 0, 1, today 14:00 – 18:00" */
  name(reservation) {
    const gpus = reservation.gpu_ids.map((id) => this.store.gpu(id)).filter(Boolean);
    const [start, end] = [reservation.start, reservation.end].map((at) => toWall(at, this.zone));
    return [gpuWords(gpus), span(start, end, this.nowWall())].filter(Boolean).join(", ");
  }

  /** Put an answer on the calendar. The message of the socket may come before it or after it. */
  #take(reservation) {
    if (reservation?.id) this.store.merge({ ...reservation, mine: true });
    return reservation;
  }

  async book(body) {
    const made = this.#take(await api("POST", "/reservations", body));
    toast(gettext("Booked: {name}.", { name: this.name(made) }), made.undo_until ? { undo: () => this.undoBooking(made) } : {});
    return made;
  }

  /** Undo a new booking completely, even if it has begun. */
  async undoBooking(made) {
    await api("POST", `/reservations/${made.id}/undo-booking`);
    this.store.merge({ id: made.id, gone: true });
    toast(gettext("Undone. Nothing is booked and nothing is charged."));
  }

  /** Extend by an hour. The end moves to the next step of the grid. */
  async longer(reservation) {
    const end = ceilGrid(addWall(toWall(reservation.end, this.zone), 3600), this.gridSeconds, this.zone);
    const until = (at) => this.change(reservation, { end: at, version: reservation.version });
    try {
      await until(fromWall(end, this.zone).toISOString());
    } catch (error) {
      if (!error.longestEnd) throw error;
      toastRefusedEnd(error, until);
    }
  }

  /** Change the times or the GPUs. The opposite change undoes it. */
  async change(before, body, { quiet = false } = {}) {
    const after = this.#take(await api("PATCH", `/reservations/${before.id}`, body));
    if (!quiet) {
      const back = { start: before.start, end: before.end, gpu_ids: before.gpu_ids, version: after.version };
      if ("purpose" in body) back.purpose = before.purpose ?? "";
      toast(gettext("Changed: {name}.", { name: this.name(after) }), {
        undo: () => this.change(after, back, { quiet: true }),
      });
    }
    return after;
  }

  /** reason: required for a Reservation of another user, who sees it. */
  async cancel(reservation, { quiet = false, reason = "" } = {}) {
    const name = this.name(reservation);
    await api("POST", `/reservations/${reservation.id}/cancel`, { reason });
    this.store.merge({ id: reservation.id, gone: true });
    toast(gettext("Cancelled: {name}.", { name }), quiet ? {} : { undo: () => this.undo(reservation) });
  }

  async undo(reservation) {
    const back = await api("POST", `/reservations/${reservation.id}/undo`);
    this.#take(back);
    toast(gettext("Booked again: {name}.", { name: this.name(reservation) }));
  }

  /** Give back a running Reservation now. It cannot be undone, so ask first. */
  async release(reservation, { reason = "" } = {}) {
    const name = this.name(reservation);
    const sure = await ask({
      title: gettext("Give the GPUs back now?"),
      text: gettext("{name}. Jobs that run there are stopped, and others may book the time at once.", { name }),
      yes: gettext("Give back now"), no: gettext("Keep them"),
    });
    if (!sure) return false;
    const after = await api("POST", `/reservations/${reservation.id}/release`, { reason });
    this.store.merge({ ...after, mine: reservation.mine });
    toast(gettext("Given back: {name}.", { name }));
    return true;
  }

  async keep(reservation) {
    this.#take(await api("POST", `/reservations/${reservation.id}/keep`));
    toast(gettext("Kept: idle time will not release this reservation again."));
  }
}
