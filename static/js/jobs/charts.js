// Curves from the numbers in the log: one uPlot per key, x is the step.

import { el } from "../dom.js";

const MOST_POINTS = 1000;
const PAIR = /([A-Za-z_][A-Za-z0-9_./]{0,30})=(-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?)(?=[\s,;]|$)/gi;

/** {step, key: value, ...} of one log line, or null. Linear in the line. */
export function numbersOf(line) {
  if (line.length > 2000 || !line.includes("=")) return null;
  const found = {};
  for (const [, key, value] of line.matchAll(PAIR)) found[key.toLowerCase()] = Number(value);
  return "step" in found && Object.keys(found).length > 1 ? found : null;
}

export class Charts {
  constructor(host, empty) {
    this.host = host;
    this.empty = empty;
    this.series = new Map();
    new ResizeObserver(() => this.fit()).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  /** Adds a point set; the same step again replaces it. */
  add(numbers) {
    const { step, ...values } = numbers;
    for (const [key, value] of Object.entries(values)) {
      if (!Number.isFinite(value)) continue;
      if (!this.series.has(key)) {
        if (this.series.size >= 8) continue;
        this.series.set(key, { xs: [], ys: [], plot: null });
      }
      const one = this.series.get(key);
      if (one.xs.length && step <= one.xs.at(-1)) {
        if (step === one.xs.at(-1)) one.ys[one.ys.length - 1] = value;
        continue;
      }
      one.xs.push(step);
      one.ys.push(value);
      if (one.xs.length > 2 * MOST_POINTS) this.thin(one);
    }
    this.later();
  }

  thin(one) {
    one.xs = one.xs.filter((_, i) => i % 2 === 0);
    one.ys = one.ys.filter((_, i) => i % 2 === 0);
  }

  later() {
    if (this.frame) return;
    this.frame = setTimeout(() => { this.frame = 0; this.draw(); }, 250);
  }

  draw() {
    this.empty.hidden = this.series.size > 0;
    if (this.host.offsetParent === null) return;
    for (const [key, one] of this.series) {
      if (!one.plot) one.plot = this.make(key, one);
      else one.plot.setData([one.xs, one.ys]);
    }
  }

  redraw() {
    for (const one of this.series.values()) { one.plot?.destroy(); one.plot = null; }
    this.host.replaceChildren();
    this.draw();
  }

  colour(name) { return getComputedStyle(this.host).getPropertyValue(name).trim(); }

  make(key, one) {
    const box = el("figure", { class: "chart" }, el("figcaption", { text: key.replaceAll("_", " ") }));
    this.host.append(box);
    // Canvas knows no light-dark(): the colours are read from elements that use it.
    const line = getComputedStyle(box).getPropertyValue("accent-color");
    const text = getComputedStyle(box).color;
    const grid = getComputedStyle(box).borderTopColor;
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    return new window.uPlot({
      width: box.clientWidth, height: 220, cursor: { y: false }, legend: { live: true },
      scales: { x: { time: false } },
      axes: [{ ...axis }, { ...axis, size: 60 }],
      series: [{ label: "step" }, { label: key, stroke: line, width: 2, points: { show: one.xs.length < 30 } }],
    }, [one.xs, one.ys], box);
  }

  fit() {
    this.draw();
    for (const { plot } of this.series.values()) {
      const box = plot?.root.parentElement;
      if (box && box.clientWidth > 0 && box.clientWidth !== plot.width) plot.setSize({ width: box.clientWidth, height: 220 });
    }
  }
}
