// What the Job's Gpus do now: the board's frames, only the rows of this Job.

import { el, setText, setVars } from "../dom.js";
import { gibFigure, pct } from "../format.js";
import { connect } from "../live.js";
import { decode } from "../telemetry/frame.js";
import { stateOf } from "../telemetry/states.js";

const SECONDS = 120;
const SVG = "http://www.w3.org/2000/svg";

class GpuRow {
  constructor(gpu) {
    this.gpu = gpu;
    this.history = [];
    this.state = el("span", { class: "state", text: "waiting" });
    this.util = el("span", { text: "–" });
    this.memory = el("span", { text: "–" });
    this.meter = el("span", { class: "meter", "aria-hidden": "true" }, el("span", { class: "meter-fill" }));
    this.spark = document.createElementNS(SVG, "svg");
    this.spark.setAttribute("class", "spark");
    this.spark.setAttribute("viewBox", `0 0 ${SECONDS - 1} 100`);
    this.spark.setAttribute("preserveAspectRatio", "none");
    this.spark.setAttribute("aria-hidden", "true");
    this.line = document.createElementNS(SVG, "polyline");
    this.spark.append(this.line);
    this.node = el("div", { class: "job-gpu" },
      el("a", { href: `/gpus/${gpu.id}/`, class: "strong", text: gpu.label }), this.state,
      this.spark, el("div", { class: "job-gpu-line" }, this.util, this.memory), this.meter);
  }

  show(row) {
    const state = stateOf(row.state);
    this.state.className = `state state-${state.key}`;
    setText(this.state, state.word);
    setText(this.util, `${pct(row.utilPct)} utilization`);
    setText(this.memory, `${gibFigure(row.memoryUsedBytes)} of ${gibFigure(this.gpu.memory_total_bytes)} GiB`);
    setVars(this.meter, { "--value": (row.memoryUsedBytes ?? 0) / this.gpu.memory_total_bytes });
    this.history.push(row.utilPct);
    if (this.history.length > SECONDS) this.history.shift();
    const from = SECONDS - this.history.length;
    const points = this.history.map((util, i) => (util === null ? "" : `${from + i},${98 - util * 0.96}`));
    this.line.setAttribute("points", points.filter(Boolean).join(" "));
  }
}

export function startGpus(host, live, gpus) {
  const rows = new Map(gpus.map((gpu) => [gpu.id, new GpuRow(gpu)]));
  host.append(...[...rows.values()].map((row) => row.node));
  let roster = null;
  return connect("/ws/board/", {
    onJson: (message) => { if (message.type === "roster") roster = message; },
    onBinary: (buffer) => {
      const frame = decode(buffer);
      if (!roster || frame.rosterId !== roster.roster_id) return;
      for (const [i, gpu] of roster.gpus.entries()) rows.get(gpu.id)?.show(frame.rows[i]);
      live.className = "live live-ok";
      setText(live, "live");
    },
    onState: ({ word }) => {
      if (word === "open") return;
      live.className = "live live-late";
      setText(live, "not live");
    },
  });
}
