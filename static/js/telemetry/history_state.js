// The time that a history shows: kept in the page's address, sent to the API.

const HOUR = 3600;
const LEAST_SECONDS = 5 * 60;
export const RANGES = [
  ["1h", "1 h", 1], ["6h", "6 h", 6], ["24h", "24 h", 24], ["7d", "7 d", 7 * 24],
  ["30d", "30 d", 30 * 24], ["90d", "90 d", 90 * 24], ["1y", "1 y", 365 * 24], ["2y", "2 y", 730 * 24],
];
const HOURS = new Map(RANGES.map(([name, , hours]) => [name, hours]));

/** A whole Unix second, or null. */
function second(text) {
  return /^[0-9]{1,12}$/.test(text ?? "") ? Number(text) : null;
}

/** {range} or {from, to}. Invalid values give the first view of the page. */
export function readState(first, search = location.search) {
  const query = new URLSearchParams(search);
  const [from, to] = [second(query.get("from")), second(query.get("to"))];
  if (from !== null && to !== null && to > from) return { from, to };
  const range = query.get("range");
  return HOURS.has(range) ? { range } : { ...first };
}

/** Keeps the state. The Back button undoes a new view. */
export function writeState(state, first, { step = true } = {}) {
  const query = new URLSearchParams(location.search);
  for (const name of ["range", "from", "to"]) query.delete(name);
  if (!same(state, first)) for (const [name, value] of Object.entries(state)) query.set(name, value);
  const text = query.toString();
  const address = location.pathname + (text ? `?${text}` : "") + location.hash;
  if (address === location.pathname + location.search + location.hash) return;
  history[step ? "pushState" : "replaceState"](null, "", address);
}

export function same(a, b) {
  return a.range === b.range && a.from === b.from && a.to === b.to;
}

/** Returns true if the view ends now and moves with the time. */
export const moves = (state) => state.range !== undefined;

export function queryOf(state, points) {
  const time = moves(state) ? `hours=${HOURS.get(state.range)}` : `from=${state.from}&to=${state.to}`;
  return `${time}&points=${points}`;
}

/** [from, to] in Unix seconds. */
export function spanOf(state, now) {
  return moves(state) ? [now - HOURS.get(state.range) * HOUR, now] : [state.from, state.to];
}

/** Half a view earlier (-1) or later (+1), at most until now. */
export function shifted(state, way, now) {
  const [from, to] = spanOf(state, now);
  const by = Math.min(Math.round((way * (to - from)) / 2), now - to);
  return { from: Math.round(from + by), to: Math.round(to + by) };
}

/** The dragged time. A short one is widened, since a point covers at least a minute. */
export function zoomed(from, to) {
  const missing = Math.max(0, LEAST_SECONDS - (to - from)) / 2;
  return { from: Math.max(0, Math.floor(from - missing)), to: Math.ceil(to + missing) };
}
