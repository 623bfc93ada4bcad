// The last day of one Gpu: bands of min and max around the mean, holes kept.

import { api } from "../api.js";
import { el } from "../dom.js";
import { siteZone } from "../time.js";

const HEIGHT = 180;
const GIB = 2 ** 30;
const scaled = (values, by) => values.map((value) => (value === null ? null : value / by));

const CHARTS = [
  { title: "Utilization, %", range: [0, 100], label: "mean", columns: (s) => [s.util_avg_pct, s.util_min_pct, s.util_max_pct] },
  { title: "Memory used, GiB", label: "mean", columns: (s) => [scaled(s.memory_avg_bytes, GIB), null, scaled(s.memory_max_bytes, GIB)] },
  { title: "Power, W", label: "mean", columns: (s) => [s.power_avg_watts, null, null] },
  { title: "Temperature, °C", label: "highest", columns: (s) => [s.temperature_max_celsius, null, null] },
];

/** Colours through the page: a canvas knows no light-dark(). */
function colours(box) {
  const style = getComputedStyle(box);
  return { line: style.accentColor, text: style.color, grid: style.borderTopColor };
}

function options(chart, box, names, host) {
  const { line, text, grid } = colours(box);
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  const faint = { stroke: line, width: 0.5, points: { show: false } };
  return {
    width: Math.max(host.clientWidth - 32, 200), height: HEIGHT, cursor: { y: false },
    tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), siteZone),
    scales: { y: chart.range ? { range: chart.range } : {} },
    axes: [{ ...axis }, { ...axis, size: 52 }],
    series: [
      {},
      { label: chart.label, stroke: line, width: 1.5, points: { show: false } },
      ...names.map((name) => ({ ...faint, label: name })),
    ],
    bands: names.length === 2 ? [{ series: [3, 2], fill: `color-mix(in srgb, ${line} 18%, transparent)` }] : [],
  };
}

export class History {
  constructor(host, empty, path) {
    this.host = host;
    this.empty = empty;
    this.path = path;
    this.plots = [];
    new ResizeObserver(() => this.fit()).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  async load() {
    const { series } = await api("GET", this.path);
    this.series = series;
    this.draw();
  }

  draw() {
    if (!this.series) return;
    for (const plot of this.plots) plot.destroy();
    this.plots = [];
    this.host.replaceChildren();
    this.empty.hidden = this.series.n.some((n) => n > 0);
    for (const chart of CHARTS) this.add(chart);
  }

  add(chart) {
    const [mean, low, high] = chart.columns(this.series);
    if (mean.every((value) => value === null)) return;
    const box = el("figure", { class: "gpu-chart" }, el("figcaption", { text: chart.title }));
    this.host.append(box);
    const extra = [["lowest", low], ["highest", high]].filter(([, column]) => column);
    const settings = options(chart, box, extra.map(([name]) => name), this.host);
    this.plots.push(new window.uPlot(settings, [this.series.at, mean, ...extra.map(([, column]) => column)], box));
  }

  fit() {
    const width = Math.max(this.host.clientWidth - 32, 200);
    for (const plot of this.plots) if (plot.width !== width) plot.setSize({ width, height: HEIGHT });
  }
}
