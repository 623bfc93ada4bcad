// State of the calendar: GPUs, Reservations of the range in view, filters.
// Facts from the socket take precedence over an answer to an earlier request.
import { api } from "../api.js";

const LIVE = ["confirmed", "active"];
const ASK_AGAIN_MS = 300;
const GROUP = (gpu) => `${gpu.node}|${gpu.gpu_class}`;

/** Sorts the reader's favourites first, in their groups, and those groups first. */
function favouritesFirst(gpus) {
  const liked = new Set(gpus.filter((gpu) => gpu.favourite).map(GROUP));
  const order = (gpu) => (liked.has(GROUP(gpu)) ? 0 : 2) + (gpu.favourite ? 0 : 1);
  return gpus.map((gpu, i) => [gpu, i]).sort(([a, i], [b, j]) => {
    const groups = Number(!liked.has(GROUP(a))) - Number(!liked.has(GROUP(b)));
    return groups || (GROUP(a) === GROUP(b) ? order(a) - order(b) : 0) || i - j;
  }).map(([gpu]) => gpu);
}

export class Store extends EventTarget {
  constructor() {
    super();
    this.gpus = [];
    this.closures = [];
    this.waiting = [];
    this.reservations = new Map();
    this.filters = { gpuClass: "", minGib: 0, mine: false };
    this.start = this.end = null;
    this.asked = 0;
    this.heard = new Map();
  }

  /** Load the range [start, end) of instants. An older answer never replaces a newer one. */
  async load(start, end) {
    const turn = ++this.asked;
    this.heard.clear();
    [this.start, this.end] = [start, end];
    const query = new URLSearchParams({ start: start.toISOString(), end: end.toISOString() });
    const answer = await api("GET", `/api/v1/calendar?${query}`);
    if (turn !== this.asked) return;
    this.gpus = favouritesFirst(answer.gpus);
    this.closures = answer.closures ?? [];
    this.waiting = answer.waiting ?? [];
    this.reservations = new Map(answer.reservations.map((r) => [r.id, r]));
    for (const fact of this.heard.values()) this.#apply(fact);
    this.loaded = true;
    this.#tell("loaded");
  }

  /** Load the same range again, after a reconnect. */
  reload() {
    return this.start ? this.load(this.start, this.end) : Promise.resolve();
  }

  /** Take one fact: a Reservation as the API gives it, or {id, gone: true}. */
  merge(fact) {
    this.heard.set(fact.id, fact);
    this.#apply(fact);
    this.#tell("changed", fact.id);
  }

  /** Take a message of the socket. It does not tell the reader's Reservations from others',
   *  so the store loads again after a new one that may be the reader's. */
  hear(fact, myName) {
    const isNew = !this.reservations.has(fact.id);
    this.merge(fact);
    if (fact.gone || !isNew || (fact.user && fact.user !== myName)) return;
    clearTimeout(this.askAgain);
    this.askAgain = setTimeout(() => this.reload(), ASK_AGAIN_MS);
  }

  #apply(fact) {
    const known = this.reservations.get(fact.id);
    if (fact.gone) {
      this.reservations.delete(fact.id);
      return;
    }
    if (known && known.version > fact.version) return;
    const inView = new Date(fact.start) < this.end && new Date(fact.end) > this.start;
    if (!inView) {
      this.reservations.delete(fact.id);
      return;
    }
    // A message to all pages does not contain whether the Reservation is the reader's, nor
    // every name. Keep the known facts of a Reservation of the reader.
    const mine = Boolean(fact.mine || known?.mine);
    const { shared, co_users, series } = { ...known, ...fact };
    const own = mine && known ? { user: known.user, purpose: fact.purpose || known.purpose } : {};
    const editable = LIVE.includes(fact.state) && Boolean(fact.editable || known?.editable || mine);
    this.reservations.set(fact.id, { ...fact, ...own, shared, co_users, series, mine, editable });
  }

  #tell(type, id) {
    this.dispatchEvent(new CustomEvent(type, { detail: { id } }));
  }

  setFilters(filters) {
    this.filters = { ...this.filters, ...filters };
    this.#tell("filtered");
  }

  gpu(id) {
    return this.gpus.find((gpu) => gpu.id === id);
  }

  /** GPUs that pass the filters, in the order of their rows. */
  visibleGpus() {
    const { gpuClass, minGib } = this.filters;
    return this.gpus.filter((gpu) => (!gpuClass || gpu.gpu_class === gpuClass)
      && gpu.memory_total_bytes >= minGib * 2 ** 30);
  }

  /** Returns the other GPUs of a node that is only booked as a whole. */
  partners(id) {
    const gpu = this.gpu(id);
    if (!gpu?.whole_node) return [];
    return this.gpus.filter((one) => one.node === gpu.node && one.id !== id).map((one) => one.id);
  }

  /** [{key, node, gpuClass, gpus}]: GPUs that fold together. */
  groups(gpus = this.visibleGpus()) {
    const found = new Map();
    for (const gpu of gpus) {
      const key = GROUP(gpu);
      if (!found.has(key)) {
        found.set(key, { key, node: gpu.node, gpuClass: gpu.gpu_class, gpus: [] });
      }
      found.get(key).gpus.push(gpu);
    }
    return [...found.values()];
  }

  visibleReservations() {
    const all = [...this.reservations.values()];
    return this.filters.mine ? all.filter((r) => r.mine) : all;
  }

  /** Returns true if a bookable GPU is free in [start, end), apart from one given Reservation. */
  isFree(gpu, start, end, leaving = null) {
    if (!gpu.bookable || this.closures.some((one) => this.#closes(one, gpu, start, end))) return false;
    return ![...this.reservations.values()].some((r) => r.id !== leaving
      && r.gpu_ids.includes(gpu.id) && new Date(r.start) < end && new Date(r.end) > start
      && LIVE.includes(r.state));
  }

  /** Returns the closed time that keeps the reader from using a GPU now, or undefined. */
  closureOf(gpu, at) {
    return this.closures.find((one) => this.#closes(one, gpu, at, new Date(at.getTime() + 1)));
  }

  /** Returns true if closed time excludes the reader. The hours of the reader's course do not. */
  #closes(closure, gpu, start, end) {
    if (closure.open) return false;
    return closure.gpu_ids.includes(gpu.id)
      && new Date(closure.start) < end && new Date(closure.end) > start;
  }
}
