// The table view: the same facts, one row per Gpu, sorted as the address says.

import { el, place, setAttr, setClass, setText, setVars } from "../dom.js";
import { UNKNOWN, ghz, gibFigure, pct } from "../format.js";
import { isSilent } from "../telemetry/states.js";
import { drawStateChip, makeStateChip } from "./card.js";
import { Windowed } from "./windowed.js";
import { energyFigure, holderWords, isBookable, missingWords, nextWords, noteWords, runners } from "./words.js";
import { gettext } from "../words.js";

const RESORT_MS = 5000;
const figure = (value, unit) => (value === null || value === undefined ? UNKNOWN : `${value}${unit}`);

/** A figure, or a dash whose title gives the reason. */
function setFigure(node, text, cell) {
  setText(node, text);
  setAttr(node, "title", text.startsWith(UNKNOWN) ? missingWords(cell) : null);
}
const low = (value) => value ?? -1;

// key, label, class, sort key
export const COLUMNS = [
  ["gpu", "GPU", "", (cell) => `${cell.info.node} ${String(cell.info.index).padStart(4, "0")}`],
  ["class", gettext("Class"), "", (cell) => cell.info.gpu_class],
  ["state", gettext("State"), "", (cell) => cell.state.code],
  ["util", gettext("Utilization"), "", (cell) => low(cell.row?.utilPct)],
  ["memory", gettext("Memory, GiB"), "num", (cell) => low(cell.row?.memoryUsedBytes)],
  ["heat", gettext("Temp."), "num", (cell) => low(cell.row?.temperatureCelsius)],
  ["power", gettext("Power"), "num", (cell) => low(cell.row?.powerWatts)],
  ["clock", gettext("Clock"), "num", (cell) => low(cell.row?.smClockMhz)],
  ["running", gettext("Running"), "", (cell) => runners(cell).join() || "~"],
  ["holder", gettext("Held by"), "", (cell) => holderWords(cell) || "~"],
  ["energy", gettext("Energy"), "num", (cell) => low(cell.spent?.kwh)],
  ["next", gettext("Then"), "", (cell) => nextWords(cell) || "~"],
];

export function sortCells(cells, key, descending) {
  const column = COLUMNS.find(([name]) => name === key);
  if (!column) return cells;
  const by = column[3];
  const sign = descending ? -1 : 1;
  return [...cells].sort((a, b) => sign * (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : a.id - b.id));
}

class Row {
  constructor(cell) {
    this.cell = cell;
    this.chip = makeStateChip();
    this.util = el("span", { class: "row-util" });
    this.meter = el("span", { class: "meter" }, el("span", { class: "meter-fill" }));
    this.texts = Object.fromEntries(["memory", "heat", "power", "clock"].map((key) => [key, el("td", { role: "cell", class: "num" })]));
    this.running = el("td", { role: "cell" });
    this.holder = el("td", { role: "cell", class: "two-lines" });
    this.energy = el("td", { role: "cell", class: "num", title: gettext("energy of the booking that runs") });
    this.next = el("td", { role: "cell", class: "two-lines" });
    this.book = el("a", { class: "btn btn-s", href: `/calendar/?gpu=${cell.id}`, text: gettext("Book"), "aria-label": gettext("Book {name}", { name: cell.name }) });
    const link = el("a", { href: `/gpus/${cell.id}/`, text: cell.name });
    const td = (props, ...children) => el("td", { role: "cell", ...props }, ...children);
    this.root = el("tr", { role: "row" },
      el("th", { scope: "row", role: "rowheader" }, link), td({ class: "two-lines", text: cell.info.gpu_class, title: cell.info.gpu_class }),
      td({}, this.chip.root), td({}, el("div", { class: "row-load" }, this.util, this.meter)),
      ...Object.values(this.texts), this.running, this.holder, this.energy, this.next, td({ class: "num" }, this.book));
  }

  paint() {
    const { cell } = this;
    const row = cell.row ?? {};
    setClass(this.root, `${isSilent(cell.state) ? "is-silent" : ""}${cell.holder?.mine ? " is-mine" : ""}`);
    drawStateChip(this.chip, cell.state);
    setFigure(this.util, pct(row.utilPct), cell);
    setVars(this.meter, { "--value": (row.utilPct ?? 0) / 100 });
    setFigure(this.texts.memory, `${gibFigure(row.memoryUsedBytes)} / ${gibFigure(cell.info.memory_total_bytes)}`, cell);
    setFigure(this.texts.heat, figure(row.temperatureCelsius, " °C"), cell);
    setFigure(this.texts.power, figure(row.powerWatts, " W"), cell);
    setFigure(this.texts.clock, ghz(row.smClockMhz), cell);
    setText(this.energy, energyFigure(cell));
    setText(this.running, runners(cell).join(", "));
    this.book.hidden = !isBookable(cell);
    const holder = holderWords(cell);
    setText(this.holder, holder || noteWords(cell));
    setAttr(this.holder, "title", [holder, noteWords(cell)].filter(Boolean).join("; ") || null);
    setText(this.next, nextWords(cell).replace(/^(then|free,) /, ""));
    setAttr(this.next, "title", nextWords(cell) || null);
  }
}

export class TableView {
  constructor(root, board, filters) {
    Object.assign(this, { root, board, filters });
    this.rows = new Map();
    this.heads = COLUMNS.map(([key, label, look]) =>
      el("th", { scope: "col", role: "columnheader", class: look, "data-key": key },
        el("button", { type: "button", text: label, on: { click: () => this.sort(key) } })));
    this.body = el("tbody", { role: "rowgroup" });
    this.table = el("table", { class: "table table-dense board-table", role: "table" },
      el("caption", { class: "visually-hidden", text: gettext("Every GPU that the filter shows") }),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...this.heads, el("td", { role: "cell" }))), this.body);
    this.window = new Windowed(this.body, (cell) => this.row(cell));
    this.wrap = el("div", { class: "card table-wrap", tabindex: "0", role: "region", "aria-label": gettext("GPUs as a table") }, this.table);
  }

  sort(key) {
    const descending = this.filters.get("sort") === key;
    this.filters.set({ sort: descending ? `-${key}` : key });
  }

  layout(cells) {
    this.cells = cells;
    this.sortedAt = performance.now();
    const asked = this.filters.get("sort") || "gpu";
    const descending = asked.startsWith("-");
    const key = asked.replace(/^-/, "");
    for (const head of this.heads) setAttr(head, "aria-sort", head.dataset.key === key ? (descending ? "descending" : "ascending") : null);
    place(this.root, [this.wrap]);
    setAttr(this.table, "aria-rowcount", cells.length + 1);
    this.window.set(sortCells(cells, key, descending));
  }

  row(cell) {
    let row = this.rows.get(cell.id);
    if (!row) {
      row = new Row(cell);
      this.rows.set(cell.id, row);
    }
    row.cell = cell;
    return row;
  }

  /** Sorts the rows now and then, but never while the pointer is over them. */
  paint() {
    const due = performance.now() - this.sortedAt > RESORT_MS || !this.hadFrame;
    if (due && this.board.frameAt !== null && !this.body.matches(":hover, :focus-within")) {
      this.hadFrame = true;
      this.layout(this.cells);
      return;
    }
    this.window.paint();
  }

  leave() {
    this.root.replaceChildren();
  }
}
