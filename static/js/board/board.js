// The live board: a socket in, one paint per animation frame out.

import { setAttr, setText } from "../dom.js";
import { connect } from "../live.js";
import { Announcer } from "./announce.js";
import { CardsView } from "./cards.js";
import { followEnergy } from "./energy.js";
import { Filters, fillSelect } from "./filters.js";
import { HeadLine } from "./head.js";
import { takeMinute } from "./minute.js";
import { Board } from "./model.js";
import { TableView } from "./table.js";
import { WallView } from "./wall.js";

const AGE_MS = 1000;
const $ = (id) => document.getElementById(id);

const board = new Board();
const filters = new Filters(() => layout());
const head = new HeadLine($("counts"), $("live"), $("slurm-age"), filters);
const announcer = new Announcer($("announcer"));
const views = {
  cards: new CardsView($("gpus"), board),
  table: new TableView($("gpus"), board, filters),
  wall: new WallView($("gpus"), board, filters, $("wall-page")),
};
let view = null;
let shown = "";
let painting = 0;
let frameWaiting = null;

function chooseView() {
  const chosen = views[filters.get("view")] ?? views.cards;
  if (chosen === view) return;
  view?.leave();
  view = chosen;
}

/** Which cells are shown, as text: a filter by state may change with each frame. */
const selection = (cells) => cells.map((cell) => cell.id).join(",");

function layout() {
  if (board.rosterId === null) return;
  chooseView();
  const cells = board.cells.filter((cell) => filters.passes(cell));
  shown = selection(cells);
  view.layout(cells);
  $("nothing").hidden = cells.length > 0 || !board.cells.length;
  $("no-node").hidden = board.cells.length > 0;
  paintControls();
  paintHead();
}

function paintControls() {
  fillSelect($("filter-class"), board.cells.map((cell) => cell.info.gpu_class), filters.get("class"));
  const groups = board.cells.map((cell) => cell.holder?.account).filter(Boolean);
  fillSelect($("filter-group"), groups, filters.get("group"));
  setAttr($("filter-mine"), "aria-pressed", Boolean(filters.get("mine")));
  if (document.activeElement !== $("filter-text")) $("filter-text").value = filters.get("q");
  $("filter-clear").hidden = !filters.active;
  $("filters-count").hidden = !filters.count;
  setText($("filters-count"), filters.count);
  for (const button of document.querySelectorAll("[data-view]")) {
    setAttr(button, "aria-pressed", views[button.dataset.view] === view);
  }
}

function paintHead() {
  head.paint(board.cells.filter((cell) => filters.passes(cell, { ignoreState: true })));
  head.paintAge(board);
}

function paint() {
  painting = 0;
  if (frameWaiting) {
    const changed = board.takeFrame(frameWaiting);
    frameWaiting = null;
    if (changed) announcer.say(changed);
  }
  if (board.rosterId === null) return;
  const cells = board.cells.filter((cell) => filters.passes(cell));
  if (selection(cells) !== shown) { layout(); return; }
  view.paint();
  paintHead();
}

function soon() {
  painting ||= requestAnimationFrame(paint);
}

const handlers = {
  roster: (message) => {
    board.takeRoster(message);
    takeMinute(board, soon);
    layout();
  },
  holders: (message) => { board.takeHolders(message.holders, message.silent); layout(); },
  detail: (message) => { board.takeDetail(message); soon(); },
};

const socket = connect("/ws/board/", {
  onJson: (message) => handlers[message.type]?.(message),
  // Frames that arrive while the page does not paint only go into the history.
  onBinary: (buffer) => {
    if (frameWaiting) board.takeFrame(frameWaiting);
    frameWaiting = buffer;
    soon();
  },
  onState: ({ word }) => {
    head.socket = word;
    if (word === "open") socket.send({ watch: "*" });
    head.paintAge(board);
  },
});

setInterval(() => head.paintAge(board), AGE_MS);
followEnergy((spent) => { board.takeEnergy(spent); soon(); });
for (const name of ["class", "group"]) {
  $(`filter-${name}`).addEventListener("change", (event) => filters.set({ [name]: event.target.value }));
}
$("filter-mine").addEventListener("click", () => filters.set({ mine: filters.get("mine") ? "" : "1" }));
$("filter-text").addEventListener("input", (event) => filters.set({ q: event.target.value.trim() }));
for (const id of ["filter-clear", "nothing-clear"]) {
  $(id).addEventListener("click", () => filters.set({ class: "", group: "", state: "", mine: "", q: "", gpu: "" }));
}
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => filters.set({ view: button.dataset.view === "cards" ? "" : button.dataset.view }));
}
// On a phone the filters wait behind a button, so that the first GPU is in sight.
$("filters-button").addEventListener("click", () => {
  const open = $("board-filters").classList.toggle("is-open");
  setAttr($("filters-button"), "aria-expanded", String(open));
});
$("wall-leave").addEventListener("click", async () => {
  if (document.fullscreenElement) await document.exitFullscreen();
  filters.set({ view: "" });
});
$("wall-full").addEventListener("click", () => document.documentElement.requestFullscreen());
