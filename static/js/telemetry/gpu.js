// The page of one Gpu: its row of the live frame, its holder, its processes.

import { drawStateChip, makeStateChip } from "../board/card.js";
import { drawMemory, makeMemory } from "../board/memory.js";
import { Board } from "../board/model.js";
import { drawSparkline, makeSparkline } from "../board/sparkline.js";
import { noteWords, untilWords, whoWords } from "../board/words.js";
import { el, pageData, setClass, setText } from "../dom.js";
import { UNKNOWN, ghz } from "../format.js";
import { tellLate } from "../board/head.js";
import { drawSlurmAge, isSlurm } from "../board/slurm.js";
import { takeMinute } from "../board/minute.js";
import { connect } from "../live.js";
import { BookingUsage } from "./booking.js";
import { Figures, instanceRows } from "./figures.js";
import { processRow } from "./processes.js";
import { isSilent, liveWords } from "./states.js";
import { gettext } from "../words.js";

const page = pageData("gpu-data");
const $ = (id) => document.getElementById(id);
const board = new Board();

const chip = makeStateChip();
const util = el("span", { class: "gpu-util" });
const spark = makeSparkline();
const memory = makeMemory();
const figures = new Figures($("gpu-figures"));
const booking = new BookingUsage($("gpu-booking"), page.sees_all);
$("gpu-state").replaceChildren(chip.root);
$("gpu-load").append(util, spark);
$("gpu-memory").append(memory.root);

const cellOf = () => board.byId.get(page.gpu);

function paintNow(cell) {
  const { row, info } = cell;
  drawStateChip(chip, cell.state);
  setClass($("gpu-load"), `gpu-load state-${cell.state.key}`);
  setText(util, row?.utilPct ?? UNKNOWN);
  drawSparkline(spark, cell);
  drawMemory(memory, cell);
  const heat = row?.temperatureCelsius ?? null;
  const power = row?.powerWatts ?? null;
  const limit = info.power_limit_watts;
  setText($("gpu-temperature"), heat === null ? UNKNOWN : `${heat} °C`);
  setText($("gpu-power"), power === null ? UNKNOWN : limit ? gettext("{power} of {limit} W", { power, limit: Math.round(limit) }) : `${power} W`);
  setText($("gpu-clock"), ghz(row?.smClockMhz));
  setText($("gpu-holder"), [whoWords(cell), untilWords(cell)].filter(Boolean).join(" "));
  booking.paint(cell.holder);
  const note = noteWords(cell);
  setText($("gpu-note"), note);
  $("gpu-note").hidden = !note;
  setClass($("gpu-note"), isSlurm(info) && !isSilent(cell.state) ? "notice" : "notice notice-warn");
}

function paintProcesses(cell) {
  const processes = cell.detail?.processes;
  $("gpu-processes").replaceChildren(...(processes ?? []).map((process) => processRow(process)));
  $("gpu-no-process").hidden = Boolean(processes?.length);
  setText($("gpu-no-process"), processes === null
    ? gettext("This GPU does not report its processes.") : gettext("No process runs on this GPU."));
}

function paintDetail(cell) {
  paintProcesses(cell);
  figures.paint(cell.detail);
  const instances = instanceRows(cell.detail);
  $("gpu-instances").replaceChildren(...instances);
  $("gpu-mig").hidden = !instances.length;
}

function paintAge() {
  tellLate(board.silenceSeconds() > 6 ? board.silenceSeconds() : null);
  if (isSlurm(cellOf()?.info)) { drawSlurmAge($("gpu-live"), board); return; }
  const age = board.ageSeconds();
  const late = age === null || age > 5;
  $("gpu-live").className = late ? "live live-late" : "live live-ok";
  setText($("gpu-live"), age === null ? gettext("connecting") : liveWords(late, age));
}

const handlers = {
  roster: (message) => { board.takeRoster(message); takeMinute(board, () => { if (cellOf()) paintNow(cellOf()); }); },
  holders: (message) => board.takeHolders(message.holders, message.silent),
  detail: (message) => {
    board.takeDetail(message);
    if (cellOf()) paintDetail(cellOf());
  },
};

const socket = connect("/ws/board/", {
  onJson: (message) => {
    handlers[message.type]?.(message);
    if (cellOf()) paintNow(cellOf());
  },
  onBinary: (buffer) => {
    board.takeFrame(buffer);
    if (cellOf()) paintNow(cellOf());
    paintAge();
  },
  onState: ({ word }) => {
    if (word === "open") socket.send({ watch: page.node, gpu: page.uuid });
  },
});

setInterval(paintAge, 1000);
