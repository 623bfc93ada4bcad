// The live log: a window on the end of the file. Chunks carry byte offsets; what
// is missing between two of them is fetched, or skipped and said when it is long.
// Never more than MOST_LINES lines stand in the page, however long the log is.

import { el, setText } from "../dom.js";
import { bytes } from "../format.js";
import { pieces } from "./ansi.js";

const MOST_LINES = 4000;
const MOST_GAP_BYTES = 256 * 1024;

export class LogView {
  constructor(nodes, fetchRange, onLine) {
    this.nodes = nodes;
    this.fetchRange = fetchRange;
    this.onLine = onLine;
    this.end = 0;
    this.size = 0;
    this.rest = "";
    this.style = { color: "", bold: false };
    this.waiting = Promise.resolve();
    this.pending = [];
    this.skipped = 0;
    nodes.log.addEventListener("wheel", (event) => { if (event.deltaY < 0) this.follow(false); }, { passive: true });
    nodes.log.addEventListener("keydown", ({ key }) => { if (["PageUp", "ArrowUp", "Home"].includes(key)) this.follow(false); });
    nodes.follow.addEventListener("change", () => { if (nodes.follow.checked) this.toEnd(); });
    nodes.wrap.addEventListener("change", () => nodes.log.classList.toggle("log-wrapped", nodes.wrap.checked));
    nodes.search.addEventListener("input", () => this.find());
  }

  follow(on) { this.nodes.follow.checked = on; }

  toEnd() { this.nodes.log.scrollTop = this.nodes.log.scrollHeight; }

  /** Takes a chunk in file order; fetches or skips what lies before it. */
  take(chunk) {
    this.waiting = this.waiting.then(() => this.place(chunk));
    return this.waiting;
  }

  async place({ offset, bytes: length, data }) {
    this.size = Math.max(this.size, offset + length);
    if (offset + length <= this.end) { this.tell(); return; }
    if (offset > this.end) await this.bridge(offset);
    if (offset < this.end) {
      const rest = await this.fetchRange(this.end, offset + length - this.end);
      if (!rest) return;
      this.end = rest.offset + rest.bytes;
      this.write(rest.data);
      return;
    }
    this.end = offset + length;
    this.write(data);
  }

  async bridge(offset) {
    const gap = offset - this.end;
    const from = gap > MOST_GAP_BYTES ? offset - MOST_GAP_BYTES : this.end;
    const piece = await this.fetchRange(from, offset - from);
    const reached = piece ? piece.offset + piece.bytes : from;
    this.skip(from - this.end + Math.max(0, offset - reached));
    if (piece) this.write(piece.data);
    this.end = offset;
  }

  skip(count) {
    if (count <= 0) return;
    this.skipped += count;
    this.nodes.skip.hidden = false;
    setText(this.nodes.skip, `${bytes(this.skipped)} of the log are not shown here. The download has all of it.`);
  }

  write(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop().slice(-65536);
    for (const line of lines) {
      // A progress bar rewrites its line: the last state of it is what counts.
      const shown = line.slice(line.replace(/\r$/, "").lastIndexOf("\r") + 1).replace(/\r$/, "");
      this.onLine?.(shown);
      this.pending.push(shown);
    }
    if (this.pending.length > MOST_LINES) this.pending.splice(0, this.pending.length - MOST_LINES);
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
    this.tell();
  }

  draw() {
    this.frame = 0;
    const { log, follow, empty } = this.nodes;
    const fragment = document.createDocumentFragment();
    for (const line of this.pending) fragment.append(this.row(line));
    this.pending = [];
    log.append(fragment);
    const over = log.childElementCount - MOST_LINES;
    if (over > 0) {
      const range = document.createRange();
      range.setStart(log, 0);
      range.setEnd(log, over);
      range.deleteContents();
    }
    empty.hidden = log.childElementCount > 0;
    if (this.nodes.search.value) this.find();
    if (follow.checked) this.toEnd();
  }

  row(line) {
    const row = el("div", { class: "log-line" });
    for (const [text, name] of pieces(line, this.style)) {
      row.append(name ? el("span", { class: name, text }) : text);
    }
    if (!row.firstChild) row.append("\u200b");
    return row;
  }

  find() {
    const wanted = this.nodes.search.value.toLowerCase();
    let count = 0;
    for (const row of this.nodes.log.children) {
      const hit = wanted !== "" && row.textContent.toLowerCase().includes(wanted);
      row.classList.toggle("log-hit", hit);
      if (hit) count += 1;
    }
    setText(this.nodes.found, wanted ? `${count} ${count === 1 ? "line" : "lines"}` : "");
    if (!wanted) return;
    this.follow(false);
    this.nodes.log.querySelector(".log-hit")?.scrollIntoView({ block: "nearest" });
  }

  tell() { setText(this.nodes.size, this.size ? bytes(this.size) : ""); }
}
