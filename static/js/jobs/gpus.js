// The Job's Gpus now: the rows of this Job in the board's frames.

import { drawStateChip, makeStateChip } from "../board/card.js";
import { takeMinute } from "../board/minute.js";
import { Board } from "../board/model.js";
import { drawSlurmAge, isSlurm } from "../board/slurm.js";
import { drawSparkline, makeSparkline } from "../board/sparkline.js";
import { el, setClass, setText, setVars } from "../dom.js";
import { gibFigure, pct } from "../format.js";
import { connect } from "../live.js";
import { gettext } from "../words.js";

const LATE_SECONDS = 5;

class GpuRow {
  constructor(gpu) {
    this.gpu = gpu;
    this.chip = makeStateChip();
    this.spark = makeSparkline();
    this.util = el("span", { text: "–" });
    this.memory = el("span", { text: "–" });
    this.meter = el("span", { class: "meter", "aria-hidden": "true" }, el("span", { class: "meter-fill" }));
    this.figures = el("div", { class: "job-gpu-line" }, this.util, this.memory);
    this.node = el("div", { class: "job-gpu" },
      el("a", { href: `/gpus/${gpu.id}/`, class: "strong", text: gpu.label }), this.chip.root,
      this.spark, this.figures, this.meter);
  }

  draw(cell) {
    const total = this.gpu.memory_total_bytes;
    const used = cell.row?.memoryUsedBytes ?? null;
    drawStateChip(this.chip, cell.state);
    setClass(this.node, `job-gpu state-${cell.state.key}`);
    // Nothing measures a Gpu of Slurm: it has a state and no figures.
    for (const part of [this.spark, this.figures, this.meter]) part.toggleAttribute("hidden", isSlurm(cell.info));
    if (isSlurm(cell.info)) return;
    drawSparkline(this.spark, cell);
    setText(this.util, gettext("{percent} utilization", { percent: pct(cell.row?.utilPct) }));
    setText(this.memory, gettext("{used} of {total} GiB", { used: gibFigure(used), total: gibFigure(total) }));
    setVars(this.meter, { "--value": total ? (used ?? 0) / total : 0 });
  }
}

/** Fills the host with the Gpus and keeps them live. Returns an object with close(). */
export function startGpus(host, live, gpus) {
  const board = new Board();
  const rows = gpus.map((gpu) => new GpuRow(gpu));
  host.replaceChildren(...rows.map((row) => row.node));
  const draw = () => {
    for (const row of rows) {
      const cell = board.byId.get(row.gpu.id);
      if (cell) row.draw(cell);
    }
    if (rows.some((row) => isSlurm(board.byId.get(row.gpu.id)?.info))) { drawSlurmAge(live, board); return; }
    const age = board.ageSeconds();
    const late = age === null || age > LATE_SECONDS;
    setClass(live, late ? "live live-late" : "live live-ok");
    setText(live, age === null ? gettext("connecting") : late ? gettext("late") : gettext("live"));
  };
  const timer = setInterval(draw, 1000);
  const socket = connect("/ws/board/", {
    onJson: (message) => {
      if (message.type !== "roster") return;
      board.takeRoster(message);
      takeMinute(board, draw);
    },
    onBinary: (buffer) => { board.takeFrame(buffer); draw(); },
  });
  return { close: () => { clearInterval(timer); socket.close(); } };
}
