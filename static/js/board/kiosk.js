// The wall behind a link: only the tiles, without sign-in and top bar.

import { pageData } from "../dom.js";
import { connect } from "../live.js";
import { Filters } from "./filters.js";
import { HeadLine } from "./head.js";
import { Board } from "./model.js";
import { WallView } from "./wall.js";

const AGE_MS = 1000;
const $ = (id) => document.getElementById(id);

const board = new Board();
const filters = new Filters(() => layout());
const head = new HeadLine($("counts"), $("live"), $("slurm-age"), filters);
const view = new WallView($("gpus"), board, filters, $("wall-page"));
let shown = "";

function layout() {
  if (board.rosterId === null) return;
  const cells = board.cells.filter((cell) => filters.passes(cell));
  shown = cells.map((cell) => cell.id).join(",");
  view.layout(cells);
  head.paint(board.cells);
}

function paint() {
  if (board.rosterId === null) return;
  const now = board.cells.filter((cell) => filters.passes(cell)).map((cell) => cell.id).join(",");
  if (now !== shown) { layout(); return; }
  view.paint();
  head.paint(board.cells);
}

const handlers = {
  roster: (message) => { board.takeRoster(message); layout(); },
  holders: (message) => { board.takeHolders(message.holders, message.silent); layout(); },
};

connect(pageData("wall-socket").path, {
  onJson: (message) => handlers[message.type]?.(message),
  onBinary: (buffer) => { board.takeFrame(buffer); requestAnimationFrame(paint); },
  onState: ({ word }) => {
    head.socket = word;
    $("wall-gone").hidden = word !== "refused";
    head.paintAge(board);
    if (word === "refused") view.leave();
  },
});

setInterval(() => head.paintAge(board), AGE_MS);
