// The lines of a log in the page: at most MOST_LINES.

import { el, setText } from "../dom.js";
import { pieces } from "./ansi.js";
import { textOfJson } from "./jsonline.js";
import { ngettext } from "../words.js";

const MOST_LINES = 4000;
const UPWARDS = ["PageUp", "ArrowUp", "Home"];

export class LogRows {
  constructor(nodes) {
    this.nodes = nodes;
    this.style = { color: "", bold: false };
    this.pending = [];
    this.last = null;
    this.lastText = "";
    const { log, follow, wrap, search, raw } = nodes;
    raw?.addEventListener("change", () => {
      for (const row of log.children) if (row.json) row.textContent = raw.checked ? row.json : textOfJson(row.json);
    });
    log.addEventListener("wheel", ({ deltaY }) => { if (deltaY < 0) this.follow(false); }, { passive: true });
    log.addEventListener("touchmove", () => this.follow(false), { passive: true });
    log.addEventListener("pointerdown", ({ offsetX }) => { if (offsetX >= log.clientWidth) this.follow(false); });
    log.addEventListener("keydown", ({ key }) => { if (UPWARDS.includes(key)) this.follow(false); });
    follow.addEventListener("change", () => { if (follow.checked) this.toEnd(); });
    wrap.addEventListener("change", () => log.classList.toggle("log-wrapped", wrap.checked));
    search.addEventListener("input", () => { this.hit = 0; this.find(); });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.hit += event.shiftKey ? -1 : 1;
      this.find();
    });
  }

  clear() {
    this.pending = [];
    this.last = null;
    this.lastText = "";
    this.nodes.log.replaceChildren();
    this.nodes.empty.hidden = false;
  }

  add(line) {
    this.pending.push(line);
    // Drop lines here and not in draw(): a hidden tab does not draw.
    if (this.pending.length > 2 * MOST_LINES) this.pending.splice(0, this.pending.length - MOST_LINES);
    this.later();
  }

  /** The last line, without a line break yet: a prompt, a progress bar. */
  unfinished(text) {
    if (text === this.lastText) return;
    this.lastText = text;
    this.later();
  }

  later() { this.frame ||= requestAnimationFrame(() => this.draw()); }

  draw() {
    this.frame = 0;
    const { log, follow, empty, search } = this.nodes;
    const lines = this.pending.slice(-MOST_LINES);
    this.pending = [];
    this.last?.remove();
    this.last = null;
    const fragment = document.createDocumentFragment();
    for (const line of lines) fragment.append(this.row(line, this.style));
    if (this.lastText) {
      this.last = this.row(this.lastText, { ...this.style });
      fragment.append(this.last);
    }
    log.append(fragment);
    this.dropOld(log.childElementCount - MOST_LINES);
    empty.hidden = log.childElementCount > 0;
    if (search.value) this.mark();
    if (follow.checked) this.toEnd();
  }

  dropOld(count) {
    if (count <= 0) return;
    const range = document.createRange();
    range.setStart(this.nodes.log, 0);
    range.setEnd(this.nodes.log, count);
    const { log, follow } = this.nodes;
    if (follow.checked) { range.deleteContents(); return; }
    // Keep the lines that the reader looks at in view.
    const before = log.scrollHeight;
    range.deleteContents();
    log.scrollTop -= before - log.scrollHeight;
  }

  row(line, style) {
    const row = el("div", { class: "log-line" });
    const text = textOfJson(line);
    if (text) {
      // One JSON object: shown as text, with the line itself behind a switch.
      row.json = line;
      const { raw } = this.nodes;
      if (raw) raw.closest("label").hidden = false;
      row.textContent = raw?.checked ? line : text;
      return row;
    }
    for (const [text, name] of pieces(line, style)) {
      row.append(name ? el("span", { class: name, text }) : text);
    }
    if (!row.firstChild) row.append("\u200b");
    return row;
  }

  follow(on) { this.nodes.follow.checked = on; }

  toEnd() { this.nodes.log.scrollTop = this.nodes.log.scrollHeight; }

  /** Marks the lines with the wanted text and returns them. */
  mark() {
    const wanted = this.nodes.search.value.toLowerCase();
    const hits = [];
    for (const row of this.nodes.log.children) {
      const hit = wanted !== "" && row.textContent.toLowerCase().includes(wanted);
      row.classList.toggle("log-hit", hit);
      row.classList.remove("log-hit-now");
      if (hit) hits.push(row);
    }
    setText(this.nodes.found, wanted ? ngettext("{n} line", "{n} lines", hits.length) : "");
    return hits;
  }

  find() {
    const hits = this.mark();
    if (!hits.length) return;
    this.follow(false);
    const at = ((this.hit % hits.length) + hits.length) % hits.length;
    hits[at].classList.add("log-hit-now");
    hits[at].scrollIntoView({ block: "nearest" });
    setText(this.nodes.found, ngettext("{at} of {n} line", "{at} of {n} lines", hits.length, { at: at + 1 }));
  }
}
