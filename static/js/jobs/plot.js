// One uPlot in the page's colours; a canvas knows no light-dark(), so they are read
// from an element that does.

import { el } from "../dom.js";

const HEIGHT = 200;
// Okabe and Ito, readable on both grounds; more lines than that begin again.
const LINES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a94a2", "#b8a800"];

export class Plot {
  /** title; lines: [label]; options: {axis, value, range} as uPlot takes them. */
  constructor(host, title, lines, { axis = {}, scales = {}, x = {}, tzDate, kind = "" } = {}) {
    this.box = el("figure", { class: `chart ${kind}` }, el("figcaption", { text: title }));
    this.lines = lines;
    this.options = { axis, scales, x, tzDate };
    this.data = [[], ...lines.map(() => [])];
    this.plot = null;
    host.append(this.box);
  }

  show(data) {
    this.data = data;
    if (this.box.offsetParent === null) return;
    if (this.plot) this.plot.setData(data);
    else this.make();
  }

  make() {
    this.plot?.destroy();
    const style = getComputedStyle(this.box);
    const line = { stroke: style.borderTopColor, width: 1 };
    const axis = { stroke: style.color, font: `12px ${style.fontFamily}`, grid: line, ticks: line };
    const { axis: y, scales, x, tzDate } = this.options;
    const only = this.lines.length === 1;
    this.plot = new window.uPlot({
      width: this.width(), height: HEIGHT, cursor: { y: false }, legend: { live: true }, scales,
      ...(tzDate ? { tzDate } : {}),
      axes: [{ ...axis, ...x.axis }, { ...axis, size: 56, ...y }],
      series: [x.series ?? { label: "step" }, ...this.lines.map((label, i) => ({
        label, width: 1.75, stroke: only ? style.accentColor : LINES[i % LINES.length],
        points: { show: this.data[0].length < 30 }, ...this.options.axis.series,
      }))],
    }, this.data, this.box);
  }

  width() { return Math.max(180, this.box.clientWidth); }

  fit() {
    if (this.box.offsetParent === null) return;
    if (!this.plot) this.make();
    else if (this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: HEIGHT });
  }

  redraw() {
    this.plot?.destroy();
    this.plot = null;
    this.fit();
  }
}
