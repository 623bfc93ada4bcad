// Reads the live frame; the layout is written down in telemetry/protocol/frame.py.
// null means "the card cannot say", never 0.

const MAGIC = 0x47;
const VERSION = 1;
const HEADER_BYTES = 16;
const ROW_BYTES = 12;
const MIB = 2 ** 20;

const known = (value, unknown) => (value === unknown ? null : value);

/** ArrayBuffer -> {rosterId, serverAt, rows}. Throws RangeError for anything else. */
export function decode(buffer) {
  if (buffer.byteLength < HEADER_BYTES) throw new RangeError(`a frame of ${buffer.byteLength} bytes`);
  const view = new DataView(buffer);
  if (view.getUint8(0) !== MAGIC) throw new RangeError("not a frame");
  if (view.getUint8(1) !== VERSION) throw new RangeError(`a frame of version ${view.getUint8(1)}`);
  const count = view.getUint16(14, true);
  if (buffer.byteLength !== HEADER_BYTES + count * ROW_BYTES) {
    throw new RangeError(`a frame of ${count} rows in ${buffer.byteLength} bytes`);
  }
  const rows = new Array(count);
  for (let i = 0; i < count; i++) rows[i] = row(view, HEADER_BYTES + i * ROW_BYTES);
  return { rosterId: view.getUint32(2, true), serverAt: view.getFloat64(6, true), rows };
}

/** Frames one after the other in one ArrayBuffer -> [ArrayBuffer, ...]. */
export function split(buffer) {
  const view = new DataView(buffer);
  const frames = [];
  for (let at = 0; at + HEADER_BYTES <= buffer.byteLength;) {
    const end = at + HEADER_BYTES + view.getUint16(at + 14, true) * ROW_BYTES;
    frames.push(buffer.slice(at, end));
    at = end;
  }
  return frames;
}

function row(view, at) {
  const util = view.getUint8(at + 1);
  const memory = known(view.getUint32(at + 2, true), 0xffffffff);
  const age = known(view.getUint8(at + 11), 0xff);
  return {
    state: view.getUint8(at),
    utilPct: util > 100 ? null : util,
    memoryUsedBytes: memory === null ? null : memory * MIB,
    temperatureCelsius: known(view.getUint8(at + 6), 0xff),
    powerWatts: known(view.getUint16(at + 7, true), 0xffff),
    smClockMhz: known(view.getUint16(at + 9, true), 0xffff),
    ageSeconds: age === null ? null : age / 10,
  };
}
