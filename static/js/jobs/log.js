// The live log as a stream of chunks with byte offsets. Missing bytes between two chunks
// are fetched from the stored file. A long gap is skipped, and a line says so.

import { setText } from "../dom.js";
import { bytes } from "../format.js";
import { gettext } from "../words.js";

const MOST_GAP_BYTES = 256 * 1024;
const MOST_REST_CHARACTERS = 65536;
// The stored file is written a moment after the live chunks.
const TRIES = 4;
const TRY_AGAIN_MS = 700;

const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });

/** A progress bar rewrites its line. Keep the last state of the line. */
function lastState(line) {
  const whole = line.replace(/\r+$/, "");
  return whole.slice(whole.lastIndexOf("\r") + 1);
}

export class LogStream {
  /** rows: receives the lines. fetchRange(offset, length) -> chunk or null. */
  constructor({ rows, skip, size }, fetchRange, onLine) {
    Object.assign(this, { rows, skipNode: skip, sizeNode: size, fetchRange, onLine });
    this.waiting = Promise.resolve();
    this.reset();
  }

  reset() {
    this.end = 0;
    this.size = 0;
    this.rest = "";
    this.skipped = 0;
    this.skipNode.hidden = true;
    this.rows.clear();
  }

  /** Takes chunks one after the other. Fetches or skips the gap before each. */
  take(chunk) {
    this.waiting = this.waiting.then(() => this.place(chunk));
    return this.waiting;
  }

  async place({ offset, bytes: length, data }) {
    this.size = Math.max(this.size, offset + length);
    if (offset + length <= this.end) { this.tell(); return; }
    if (offset > this.end) await this.bridge(offset);
    if (offset < this.end) {
      // The chunk overlaps the shown lines. Only the file shows where characters begin.
      const rest = await this.fetchWhole(this.end, offset + length);
      for (const piece of rest) this.add(piece);
      this.end = Math.max(this.end, offset + length);
      return;
    }
    this.end = offset + length;
    this.write(data);
  }

  async bridge(offset) {
    const gap = offset - this.end;
    if (gap > MOST_GAP_BYTES) {
      this.skip(gap - MOST_GAP_BYTES);
      this.end = offset - MOST_GAP_BYTES;
    }
    for (const piece of await this.fetchWhole(this.end, offset)) this.add(piece);
    this.skip(offset - this.end);
    this.end = Math.max(this.end, offset);
  }

  /** Chunks of [from, to), as far as the stored file contains them after a few attempts. */
  async fetchWhole(from, to) {
    const pieces = [];
    for (let at = from, tries = 0; at < to && tries < TRIES;) {
      const piece = await this.fetchRange(at, to - at);
      if (piece?.bytes) { pieces.push(piece); at = piece.offset + piece.bytes; continue; }
      tries += 1;
      if (tries < TRIES) await sleep(TRY_AGAIN_MS);
    }
    return pieces;
  }

  add(piece) {
    this.end = piece.offset + piece.bytes;
    this.write(piece.data);
  }

  skip(count) {
    if (count <= 0) return;
    this.skipped += count;
    this.rest = "";
    this.skipNode.hidden = false;
    setText(this.skipNode, gettext("{size} of the log are not shown here. The download has all of it.", { size: bytes(this.skipped) }));
  }

  write(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop().slice(-MOST_REST_CHARACTERS);
    for (const line of lines) {
      const shown = lastState(line);
      this.onLine(shown);
      this.rows.add(shown);
    }
    this.rows.unfinished(lastState(this.rest));
    this.tell();
  }

  tell() { setText(this.sizeNode, this.size ? bytes(this.size) : ""); }
}
