// Curves of a Job: the numbers in its log (x is the step), and the figures of its Gpus.

import { clock, siteZone } from "../time.js";
import { Plot } from "./plot.js";
import { positive, smoothed } from "./smooth.js";
import { gettext } from "../words.js";

const MOST_POINTS = 1000;
const MOST_KEYS = 8;
const MOST_STEP = 1e15; // as in training_output.py
const MOST_VALUE = 1e300; // the difference of two values is finite
const GIB = 2 ** 30;
const WHOLE_MINUTES = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080].map((minutes) => 60 * minutes);
const PAIR = /(?:\b(train(?:ing)?|val(?:id(?:ation)?)?|dev|evaluation|eval|test|avg|average|mean|lm|grad|learning)\.?[ \t](?!step|epoch|iter))?([A-Za-z_][A-Za-z0-9_./]{0,30})[=:] ?(-?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})(?:e[+-]?[0-9]{1,3})?)(?:\/[0-9]{1,19})?(?=[\s,;|)\]]|$)/gi;

const NO_CURVE = new Set(["steps", "total", "total_steps", "max_steps", "num_steps", "seconds", "parameters"]); // totals, clocks and sizes are not drawn

/** The numbers of a line that is one JSON object. {} for other lines. */
function ofJson(line) {
  try {
    return Object.fromEntries(Object.entries(JSON.parse(line))
      .filter(([key, value]) => typeof value === "number" && key.length <= 31 && !NO_CURVE.has(key))
      .slice(0, 16)
      .map(([key, value]) => [key.toLowerCase(), value]));
  } catch (error) {
    if (error instanceof SyntaxError) return {};
    throw error;
  }
}

/** {step, key: value, ...} of one log line, or null. Takes time linear in the line's length. */
export function numbersOf(line) {
  if (line.length > 2000 || !/[=:]/.test(line)) return null;
  const text = line.trim();
  const found = text.startsWith("{") && text.endsWith("}") ? ofJson(text) : {};
  if (!Object.keys(found).length) {
    for (const [, part, name, value] of line.matchAll(PAIR)) found[(part ? `${part}_${name}` : name).toLowerCase()] = Number(value);
  }
  return "step" in found && Object.keys(found).length > 1 ? found : null;
}

const thinned = (values) => values.filter((_, i) => i % 2 === 0);

export class Charts {
  /** tools: {smooth, log, reset, box}, the controls above the curves. */
  constructor(host, empty, tools) {
    this.host = host;
    this.empty = empty;
    this.tools = tools;
    tools.smooth.addEventListener("input", () => this.draw());
    tools.log.addEventListener("change", () => {
      for (const { plot } of this.curves.values()) plot?.change({ log: tools.log.checked });
      this.draw();
    });
    tools.reset.addEventListener("click", () => {
      for (const plot of this.plots) plot.zoomOut();
      tools.reset.hidden = true;
    });
    this.curves = new Map();
    this.plots = [];
    new ResizeObserver(() => this.fit()).observe(host);
    const redraw = () => this.plots.forEach((plot) => plot.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    document.addEventListener("theme:changed", redraw);
  }

  /** Adds the numbers of one line. A second line with the same step replaces them. */
  add({ step, ...values }) {
    if (!(step >= 0 && step <= MOST_STEP)) return;
    for (const [key, value] of Object.entries(values)) {
      if (!(Math.abs(value) < MOST_VALUE) || NO_CURVE.has(key)) continue;
      if (!this.curves.has(key)) {
        if (this.curves.size >= MOST_KEYS) continue;
        this.curves.set(key, { xs: [], ys: [], plot: null });
      }
      this.point(this.curves.get(key), step, value);
    }
    this.timer ??= setTimeout(() => { this.timer = null; this.draw(); }, 250);
  }

  /** Adds rows that were read from the log, and keeps the later points that came live. */
  merge(rows) {
    const live = [...this.curves].map(([key, { xs, ys }]) => [key, xs, ys]);
    for (const curve of this.curves.values()) [curve.xs, curve.ys] = [[], []];
    for (const row of rows) this.add(row);
    for (const [key, xs, ys] of live) xs.forEach((step, i) => this.point(this.curves.get(key), step, ys[i]));
  }

  point(curve, step, value) {
    const { xs, ys } = curve;
    if (xs.length && step <= xs.at(-1)) {
      if (step === xs.at(-1)) ys[ys.length - 1] = value;
      return;
    }
    xs.push(step);
    ys.push(value);
    if (xs.length > 2 * MOST_POINTS) [curve.xs, curve.ys] = [thinned(xs), thinned(ys)];
  }

  draw() {
    this.empty.hidden = this.plots.length + this.curves.size > 0;
    this.tools.box.hidden = this.curves.size === 0;
    const weight = Number(this.tools.smooth.value);
    const fit = this.tools.log.checked ? positive : (values) => values;
    for (const [key, curve] of this.curves) {
      // Leave out figures that are always zero.
      if (!curve.plot && !curve.ys.some((value) => value !== 0)) continue;
      const label = key.replaceAll("_", " ");
      curve.plot ??= this.plot(label, [label], { scales: { x: { time: false } }, log: this.tools.log.checked });
      curve.plot.options.pale = weight ? [1] : [];
      const data = weight ? [curve.xs, fit(smoothed(curve.ys, weight)), fit(curve.ys)] : [curve.xs, fit(curve.ys)];
      curve.plot.show(data, weight ? [label, gettext("as logged")] : [label]);
    }
  }

  plot(title, lines, options) {
    const made = new Plot(this.host, title, lines, options);
    made.onZoom = () => { this.tools.reset.hidden = false; };
    this.plots.push(made);
    return made;
  }

  /** Draws the figures of the Gpus while the Job ran, and the plan's memory as a line. */
  showGpus({ gpus, planned_bytes: planned }) {
    const known = gpus.filter((gpu) => gpu.series.n.some((n) => n > 0));
    if (!known.length) return;
    const at = known[0].series.at;
    const names = known.map((gpu) => gpu.label);
    const scaled = (values) => values.map((value) => (value === null ? null : value / GIB));
    const x = {
      axis: { values: (_plot, splits) => splits.map((seconds) => clock(new Date(seconds * 1000))), space: 72, incrs: WHOLE_MINUTES },
      series: { label: gettext("time"), value: (_plot, seconds) => (seconds === null ? "–" : clock(new Date(seconds * 1000))) },
    };
    const tzDate = (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), siteZone);
    const estimates = [...new Set(known.map((gpu) => planned[gpu.label]).filter(Boolean))];
    this.util ??= this.plot(gettext("GPU utilization, %"), names, { x, tzDate, kind: "chart-gpu", scales: { y: { range: [0, 100] } } });
    this.memory ??= this.plot(gettext("GPU memory, GiB"), [...names, ...estimates.map(() => gettext("planned"))], { x, tzDate, kind: "chart-gpu", scales: { y: { range: (_plot, _low, high) => [0, high * 1.1 || 1] } } });
    this.util.show([at, ...known.map((gpu) => gpu.series.util_avg_pct)]);
    this.memory.show([at, ...known.map((gpu) => scaled(gpu.series.memory_max_bytes)), ...estimates.map((size) => at.map(() => size / GIB))]);
    this.draw();
  }

  fit() { for (const plot of this.plots) plot.fit(); }
}
