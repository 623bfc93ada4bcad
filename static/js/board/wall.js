// The corridor screen: every Gpu at once, read from two metres, for ever.

import { el, place, setClass, setText, setVars } from "../dom.js";
import { UNKNOWN } from "../format.js";
import { icon, setIcon } from "../icons.js";
import { isSilent } from "../telemetry/states.js";
import { holderWords, nextWords, noteWords } from "./words.js";

const TILE_RATIO = 1.5;

/** Columns that make the tiles largest for so many in such a box. */
export function bestColumns(count, width, height) {
  let best = { columns: 1, size: 0 };
  for (let columns = 1; columns <= count; columns++) {
    const rows = Math.ceil(count / columns);
    const size = Math.min(width / columns, (height / rows) * TILE_RATIO);
    if (size > best.size) best = { columns, size };
  }
  return best;
}

class Tile {
  constructor(cell) {
    this.cell = cell;
    this.svg = icon("unknown");
    this.word = el("span");
    this.util = el("span", { class: "tile-util" });
    this.bar = el("span", { class: "tile-bar" });
    this.holder = el("span", { class: "tile-holder truncate" });
    this.root = el("article", { class: "tile", "aria-label": `GPU ${cell.name}` },
      el("header", { class: "tile-head" }, el("span", { class: "tile-name truncate", text: cell.name }), el("span", { class: "tile-class truncate", text: cell.info.gpu_class })),
      el("p", { class: "tile-state" }, this.svg, this.word),
      el("p", { class: "tile-load" }, this.util, this.bar),
      this.holder);
  }

  paint() {
    const { cell } = this;
    setClass(this.root, `tile state-${cell.state.key}${isSilent(cell.state) ? " is-silent" : ""}`);
    setIcon(this.svg, cell.state.key);
    setText(this.word, cell.state.word);
    const util = cell.row?.utilPct ?? null;
    setText(this.util, util === null ? UNKNOWN : `${util} %`);
    setVars(this.bar, { "--value": (util ?? 0) / 100 });
    setText(this.holder, holderWords(cell) || noteWords(cell) || nextWords(cell));
  }
}

export class WallView {
  constructor(root, board, filters) {
    Object.assign(this, { root, board, filters });
    this.tiles = new Map();
    this.grid = el("div", { class: "wall-grid" });
    new ResizeObserver(() => this.fit()).observe(root);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.shown && !document.fullscreenElement) filters.set({ view: "" });
    });
  }

  layout(cells) {
    this.shown = cells;
    document.body.classList.add("is-wall");
    place(this.grid, cells.map((cell) => {
      if (!this.tiles.has(cell.id)) this.tiles.set(cell.id, new Tile(cell));
      const tile = this.tiles.get(cell.id);
      tile.cell = cell;
      return tile.root;
    }));
    place(this.root, [this.grid]);
    this.fit();
    this.paint();
  }

  fit() {
    if (!this.shown) return;
    const { columns, size } = bestColumns(this.shown.length || 1, this.root.clientWidth, this.root.clientHeight);
    const rows = Math.ceil(this.shown.length / columns) || 1;
    setVars(this.grid, { "--columns": columns, "--rows": rows, "--tile-size": `${size}px` });
  }

  paint() {
    for (const cell of this.shown ?? []) this.tiles.get(cell.id).paint();
  }

  leave() {
    this.shown = null;
    document.body.classList.remove("is-wall");
    this.root.replaceChildren();
  }
}
