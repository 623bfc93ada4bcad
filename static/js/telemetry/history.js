// The last day of one Gpu: bands of min and max around the mean, holes kept.

import { api } from "../api.js";
import { el } from "../dom.js";
import { absolute, clock, siteZone } from "../time.js";

const HEIGHT = 180;
const GIB = 2 ** 30;
const scaled = (values, by) => values.map((value) => (value === null ? null : value / by));

const CHARTS = [
  { title: "Utilization, %", most: () => 100, label: "mean", columns: (s) => [s.util_avg_pct, s.util_min_pct, s.util_max_pct] },
  { title: "Memory used, GiB", most: (page) => page.memory_total_bytes / GIB, label: "mean", columns: (s) => [scaled(s.memory_avg_bytes, GIB), null, scaled(s.memory_max_bytes, GIB)] },
  { title: "Power, W", most: (page) => page.power_limit_watts, label: "mean", columns: (s) => [s.power_avg_watts, null, null] },
  { title: "Temperature, °C", label: "highest", columns: (s) => [s.temperature_max_celsius, null, null] },
];

/** "14:00", with the day in front where the day changes. */
function timeLabels(_plot, splits) {
  return splits.map((at) => clock(new Date(at * 1000)));
}

/** Colours through the page: a canvas knows no light-dark(). */
function colours(box) {
  const style = getComputedStyle(box);
  return { line: style.accentColor, text: style.color, grid: style.borderTopColor, font: `12px ${style.fontFamily}` };
}

function options(chart, box, names, width, most) {
  const { line, text, grid, font } = colours(box);
  const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  const faint = { stroke: line, width: 0.5, points: { show: false } };
  return {
    width, height: HEIGHT, cursor: { y: false },
    tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), siteZone),
    scales: { y: most ? { range: [0, most] } : {} },
    axes: [{ ...axis, values: timeLabels, space: 72 }, { ...axis, size: 52 }],
    series: [
      { value: (_plot, at) => (at === null ? "–" : absolute(new Date(at * 1000))) },
      { label: chart.label, stroke: line, width: 1.5, points: { show: false } },
      ...names.map((name) => ({ ...faint, label: name })),
    ],
    bands: names.length === 2 ? [{ series: [3, 2], fill: `color-mix(in srgb, ${line} 18%, transparent)` }] : [],
  };
}

export class History {
  constructor(host, empty, page) {
    this.host = host;
    this.empty = empty;
    this.page = page;
    this.plots = [];
    new ResizeObserver(() => this.fit()).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  async load() {
    const { series } = await api("GET", this.page.history);
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
    const settings = options(chart, box, extra.map(([name]) => name), this.width(), chart.most?.(this.page));
    this.plots.push(new window.uPlot(settings, [this.series.at, mean, ...extra.map(([, column]) => column)], box));
  }

  width() {
    return Math.max(this.host.clientWidth - 32, 200);
  }

  fit() {
    const width = this.width();
    for (const plot of this.plots) if (plot.width !== width) plot.setSize({ width, height: HEIGHT });
  }
}
