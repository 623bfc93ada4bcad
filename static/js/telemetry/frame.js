// Reads the live frame. telemetry/protocol/frame.py defines its header, which never
// changes. The layout of a row comes with the roster. null means "the card cannot say", never 0.

const MAGIC = 0x47;
const VERSION = 1;
const HEADER_BYTES = 16;

const camelCase = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

/** The roster's layout -> {rowBytes, fields}, with the names used in JavaScript. */
export function readLayout(layout) {
  const fields = layout.fields.map(([name, width, offset, most, step]) => ({ name: camelCase(name), get: `get${width}`, offset, most, step }));
  return { rowBytes: layout.row_bytes, fields };
}

/** ArrayBuffer -> {rosterId, serverAt, rows}. Throws RangeError for anything else. */
export function decode(buffer, { rowBytes, fields }) {
  if (buffer.byteLength < HEADER_BYTES) throw new RangeError(`a frame of ${buffer.byteLength} bytes`);
  const view = new DataView(buffer);
  if (view.getUint8(0) !== MAGIC) throw new RangeError("not a frame");
  if (view.getUint8(1) !== VERSION) throw new RangeError(`a frame of version ${view.getUint8(1)}`);
  const count = view.getUint16(14, true);
  if (buffer.byteLength !== HEADER_BYTES + count * rowBytes) {
    throw new RangeError(`a frame of ${count} rows in ${buffer.byteLength} bytes`);
  }
  const rows = new Array(count);
  for (let i = 0; i < count; i++) {
    const at = HEADER_BYTES + i * rowBytes;
    const row = {};
    for (const { name, get, offset, most, step } of fields) {
      const value = view[get](at + offset, true);
      row[name] = value > most ? null : value * step;
    }
    rows[i] = row;
  }
  return { rosterId: rosterIdOf(buffer), serverAt: view.getFloat64(6, true), rows };
}

/** The id of the roster whose order a frame has, or null for other data. */
export function rosterIdOf(buffer) {
  return buffer.byteLength < HEADER_BYTES ? null : new DataView(buffer).getUint32(2, true);
}

/** Frames of one layout, one after the other in one ArrayBuffer -> [ArrayBuffer, ...]. */
export function split(buffer, { rowBytes }) {
  const view = new DataView(buffer);
  const frames = [];
  for (let at = 0; at + HEADER_BYTES <= buffer.byteLength;) {
    const end = at + HEADER_BYTES + view.getUint16(at + 14, true) * rowBytes;
    frames.push(buffer.slice(at, end));
    at = end;
  }
  return frames;
}
