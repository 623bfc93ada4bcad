// What the calendar knows: GPUs, Reservations of the range in view, filters.
// Facts from the socket win over an answer that was asked for before them.
import { api } from "../api.js";

const LIVE = ["confirmed", "active"];
const ASK_AGAIN_MS = 300;
const GROUP = (gpu) => `${gpu.node}|${gpu.gpu_class}`;

/** One's own favourites first: their groups, and they in their groups. */
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

  /** Load the range [start, end) of instants; an older answer never wins. */
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

  /** Take a message of the socket. One's own from another page looks like anybody's
   *  in it, so a new one that may be the reader's makes the store ask again. */
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
    // A message to everybody cannot say whose page reads it, nor show a plain page
    // its own name: what was known of a Reservation of one's own stays.
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

  /** GPUs that the filters leave, in the order of their rows. */
  visibleGpus() {
    const { gpuClass, minGib } = this.filters;
    return this.gpus.filter((gpu) => (!gpuClass || gpu.gpu_class === gpuClass)
      && gpu.memory_total_bytes >= minGib * 2 ** 30);
  }

  /** [{key, node, gpuClass, gpus}]: what is folded together. */
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

  /** Whether a bookable GPU has nothing in [start, end), leaving one Reservation out. */
  isFree(gpu, start, end, leaving = null) {
    if (!gpu.bookable || this.closures.some((one) => this.#closes(one, gpu, start, end))) return false;
    return ![...this.reservations.values()].some((r) => r.id !== leaving
      && r.gpu_ids.includes(gpu.id) && new Date(r.start) < end && new Date(r.end) > start
      && LIVE.includes(r.state));
  }

  /** The closed time that keeps the reader off a GPU at this moment, or undefined. */
  closureOf(gpu, at) {
    return this.closures.find((one) => this.#closes(one, gpu, at, new Date(at.getTime() + 1)));
  }

  /** Whether closed time keeps the reader out; a course's own hours do not. */
  #closes(closure, gpu, start, end) {
    if (closure.open) return false;
    return closure.gpu_ids.includes(gpu.id)
      && new Date(closure.start) < end && new Date(closure.end) > start;
  }
}
