// Rows of a long table: only those near the screen are in the document; two spacers
// take the place of the others, so that the page keeps its full length.

import { el, place, setAttr, setVars } from "../dom.js";

const FEW = 60; // up to this number all rows are in the document, for printing and for searching in the page
const AROUND = 12; // rows kept ready above and below the screen
const FIRST_GUESS_PX = 41;

export class Windowed {
  /** makeRow(item) returns an object whose `root` is the row of the item. */
  constructor(body, makeRow) {
    Object.assign(this, { body, makeRow, items: [], rows: [], rowPx: FIRST_GUESS_PX });
    this.above = el("tr", { class: "spacer", "aria-hidden": "true" }, el("td"));
    this.below = el("tr", { class: "spacer", "aria-hidden": "true" }, el("td"));
    const soon = () => { this.waiting ||= requestAnimationFrame(() => { this.waiting = 0; this.fit(); }); };
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon, { passive: true });
  }

  set(items) {
    this.items = items;
    this.range = "";
    this.fit();
  }

  /** Returns the range of rows on the screen and just beyond it. */
  wanted() {
    const count = this.items.length;
    if (count <= FEW) return [0, count];
    const top = -this.body.getBoundingClientRect().top;
    const first = Math.floor(top / this.rowPx) - AROUND;
    const last = Math.ceil((top + innerHeight) / this.rowPx) + AROUND;
    return [Math.max(0, Math.min(first, count - 1)), Math.min(count, Math.max(last, AROUND))];
  }

  fit() {
    if (!this.body.isConnected && this.range) return;
    const [first, last] = this.wanted();
    if (this.range === `${first} ${last}`) return;
    this.range = `${first} ${last}`;
    this.rows = this.items.slice(first, last).map((item) => this.makeRow(item));
    this.rows.forEach((row, i) => { row.paint(); setAttr(row.root, "aria-rowindex", first + i + 2); });
    setVars(this.above, { "--height": `${first * this.rowPx}px` });
    setVars(this.below, { "--height": `${(this.items.length - last) * this.rowPx}px` });
    const roots = this.rows.map((row) => row.root);
    place(this.body, [...(first ? [this.above] : []), ...roots, ...(last < this.items.length ? [this.below] : [])]);
    this.measure();
  }

  /** Measures the height of a row. All rows have the same height, which depends on the reader's font. */
  measure() {
    const height = this.rows.at(0)?.root.getBoundingClientRect().height;
    if (!height || Math.abs(height - this.rowPx) < 0.5) return;
    this.rowPx = height;
    this.range = "";
    this.waiting ||= requestAnimationFrame(() => { this.waiting = 0; this.fit(); });
  }

  paint() {
    for (const row of this.rows) row.paint();
  }
}
