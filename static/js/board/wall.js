// The corridor screen: Gpus as large tiles that can be read from two metres. If there are
// more than fit, pages change every ten seconds, until a viewer holds one.

import { el, place, setAttr, setClass, setText, setVars } from "../dom.js";
import { UNKNOWN } from "../format.js";
import { icon, setIcon } from "../icons.js";
import { isSilent } from "../telemetry/states.js";
import { holderWords, nextWords, noteWords } from "./words.js";
import { gettext } from "../words.js";

const TILE_RATIO = 1.5;
const SMALLEST_TILE_PX = 220;
const PAGE_MS = 10_000;
const PHONE = matchMedia("(max-width: 40rem)");

/** Returns the number of columns with the largest tiles for a number of Gpus and a box. */
export function bestColumns(count, width, height) {
  let best = { columns: 1, size: 0 };
  for (let columns = 1; columns <= count; columns++) {
    const rows = Math.ceil(count / columns);
    const size = Math.min(width / columns, (height / rows) * TILE_RATIO);
    if (size > best.size) best = { columns, size };
  }
  return best;
}

/** Returns how many tiles of the smallest legible size fit into a box. */
export function capacity(width, height) {
  const columns = Math.max(1, Math.floor(width / SMALLEST_TILE_PX));
  return columns * Math.max(1, Math.floor((height * TILE_RATIO) / SMALLEST_TILE_PX));
}

class Tile {
  constructor(cell) {
    this.cell = cell;
    this.svg = icon("unknown");
    this.word = el("span");
    this.util = el("span", { class: "tile-util" });
    this.bar = el("span", { class: "tile-bar" });
    this.holder = el("span", { class: "tile-holder truncate" });
    this.root = el("article", { class: "tile", "aria-label": gettext("GPU {name}", { name: cell.name }) },
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
  constructor(root, board, filters, pageButton) {
    Object.assign(this, { root, board, filters, pageButton });
    this.tiles = new Map();
    this.page = 0;
    this.held = false;
    this.grid = el("div", { class: "wall-grid" });
    new ResizeObserver(() => this.fit()).observe(root);
    pageButton.addEventListener("click", () => { this.held = !this.held; this.fit(); });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.cells && !document.fullscreenElement) filters.set({ view: "" });
    });
    setInterval(() => {
      if (!this.cells || this.held || document.hidden) return;
      this.page++;
      this.fit();
    }, PAGE_MS);
  }

  layout(cells) {
    this.cells = cells;
    document.body.classList.add("is-wall");
    place(this.root, [this.grid]);
    this.fit();
  }

  /** Chooses the page's tiles and their size. */
  fit() {
    if (!this.cells) return;
    const [width, height] = [this.root.clientWidth, this.root.clientHeight];
    const most = PHONE.matches ? this.cells.length || 1 : capacity(width, height);
    const pages = Math.ceil(this.cells.length / most) || 1;
    this.page %= pages;
    this.shown = this.cells.slice(this.page * most, (this.page + 1) * most);
    const slots = pages > 1 ? most : this.shown.length || 1;
    const { columns, size } = bestColumns(slots, width, height);
    setVars(this.grid, { "--columns": columns, "--rows": Math.ceil(slots / columns), "--tile-size": `${size}px` });
    place(this.grid, this.shown.map((cell) => this.tile(cell).root));
    this.pageButton.hidden = pages === 1;
    setText(this.pageButton, this.held ? gettext("{page} of {pages}, paused", { page: this.page + 1, pages }) : gettext("{page} of {pages}", { page: this.page + 1, pages }));
    setAttr(this.pageButton, "aria-pressed", this.held);
    this.paint();
  }

  tile(cell) {
    if (!this.tiles.has(cell.id)) this.tiles.set(cell.id, new Tile(cell));
    const tile = this.tiles.get(cell.id);
    tile.cell = cell;
    return tile;
  }

  paint() {
    for (const cell of this.shown ?? []) this.tile(cell).paint();
  }

  leave() {
    this.cells = null;
    this.shown = null;
    document.body.classList.remove("is-wall");
    this.root.replaceChildren();
  }
}
