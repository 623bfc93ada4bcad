// The page of one node: its Gpus as on the board, and all processes on them.

import { CardsView } from "../board/cards.js";
import { Board } from "../board/model.js";
import { el, pageData, setText } from "../dom.js";
import { UNKNOWN } from "../format.js";
import { tellLate } from "../board/head.js";
import { drawSlurmAge, isSlurm } from "../board/slurm.js";
import { takeMinute } from "../board/minute.js";
import { connect } from "../live.js";
import { processRow } from "./processes.js";
import { liveWords } from "./states.js";
import { gettext } from "../words.js";

const page = pageData("node-data");
const $ = (id) => document.getElementById(id);
const board = new Board();
const view = new CardsView($("gpus"), board);
const TROUBLES = {
  hung: gettext("The driver of this node hangs. Its readings are delayed."),
  wedged: gettext("The driver of this node hangs and cannot be ended. The machine needs a restart."),
  no_driver: gettext("This node has no working driver."),
  no_gpu: gettext("This node has a driver and no GPU."),
  no_rights: gettext("The worker of this node lacks a right:"),
  reloading: gettext("The driver of this node is being loaded again."),
};

const cells = () => board.cells.filter((cell) => cell.info.node === page.node);

function layout() {
  if (board.rosterId === null) return;
  view.layout(cells());
  $("no-gpu").hidden = cells().length > 0;
}

function paintDetail(detail) {
  setText($("node-load"), detail.load1?.toFixed(1) ?? UNKNOWN);
  const { state, reason } = detail.trouble ?? {};
  const trouble = TROUBLES[state] ?? "";
  setText($("node-trouble"), [trouble, trouble && reason].filter(Boolean).join(" "));
  $("node-trouble").hidden = !trouble;
  const rows = cells().flatMap((cell) => (cell.detail?.processes ?? []).map((process) =>
    processRow(process, el("th", { scope: "row" }, el("a", { href: `/gpus/${cell.id}/`, text: cell.info.index })))));
  $("node-processes").replaceChildren(...rows);
  $("node-no-process").hidden = rows.length > 0;
}

function paintAge() {
  tellLate(board.silenceSeconds() > 6 ? board.silenceSeconds() : null);
  if (isSlurm(board.nodes.get(page.node))) { drawSlurmAge($("node-live"), board); return; }
  const age = board.ageSeconds();
  const late = age === null || age > 5;
  $("node-live").className = late ? "live live-late" : "live live-ok";
  setText($("node-live"), age === null ? gettext("no fresh reading") : liveWords(late, age));
}

const handlers = {
  roster: (message) => { board.takeRoster(message); layout(); takeMinute(board, () => view.paint()); },
  holders: (message) => { board.takeHolders(message.holders, message.silent); layout(); },
  detail: (message) => {
    board.takeDetail(message);
    if (message.node === page.node) paintDetail(message);
    view.paint();
  },
};

const socket = connect("/ws/board/", {
  onJson: (message) => handlers[message.type]?.(message),
  onBinary: (buffer) => {
    board.takeFrame(buffer);
    view.paint();
    paintAge();
  },
  onState: ({ word }) => {
    if (word === "open") socket.send({ watch: page.node });
  },
});

setInterval(paintAge, 1000);
