// One uPlot in the page's colours. A canvas does not support light-dark(), so they are read
// from an element.

import { el } from "../dom.js";
import { gettext } from "../words.js";

const HEIGHT = 200;
const FIGURES = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 2 });
const EXACT = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 5 });
// Okabe and Ito, readable on both backgrounds. Further lines repeat the colours.
const LINES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a94a2", "#b8a800"];

/** Numbers of an axis. 12,000,000 is 12M, so that no number is cut off. */
function figures(_plot, splits) {
  return splits.map((value) => (value === null ? "" : Math.abs(value) >= 10_000 ? FIGURES.format(value) : String(value)));
}

/** Width of the longest number. */
function axisSize(plot, values, index) {
  const axis = plot.axes[index];
  if (!values?.length) return 40;
  plot.ctx.save();
  plot.ctx.font = axis.font[0];
  const widest = Math.max(...values.map((text) => plot.ctx.measureText(text ?? "").width));
  plot.ctx.restore();
  return Math.ceil(widest / devicePixelRatio) + 20;
}

/** Without a pointer the legend shows the last values, not dashes. */
function lastValues(plot) {
  const idx = plot.data[0].length - 1;
  if (idx >= 0) plot.setLegend({ idx });
}

export class Plot {
  /** title. lines: [label]. options: {axis, value, range} as in uPlot. */
  constructor(host, title, lines, { axis = {}, scales = {}, x = {}, tzDate, kind = "", log = false } = {}) {
    this.box = el("figure", { class: `chart ${kind}` }, el("figcaption", { text: title }));
    this.lines = lines;
    this.options = { axis, scales, x, tzDate, log };
    this.data = [[], ...lines.map(() => [])];
    this.plot = null;
    host.append(this.box);
  }

  show(data, lines = this.lines) {
    const other = lines.length !== this.lines.length;
    Object.assign(this, { data, lines });
    if (this.box.offsetParent === null) return;
    if (this.plot && !other) {
      this.plot.setData(data, !this.zoomed);
      lastValues(this.plot);
    } else this.make();
  }

  /** Draws again with other options: a logarithmic axis, pale lines. */
  change(options) {
    Object.assign(this.options, options);
    this.redraw();
  }

  zoomOut() {
    this.zoomed = false;
    this.plot?.setData(this.data);
    if (this.plot) lastValues(this.plot);
  }

  make() {
    this.plot?.destroy();
    const style = getComputedStyle(this.box);
    const line = { stroke: style.borderTopColor, width: 1 };
    const axis = { stroke: style.color, font: `12px ${style.fontFamily}`, grid: line, ticks: line };
    const { axis: y, scales, x, tzDate, log, pale = [] } = this.options;
    const only = this.lines.length - pale.length === 1;
    const colour = (i) => (only ? style.accentColor : LINES[i % LINES.length]);
    const value = (_plot, number) => (number === null || number === undefined ? "–" : EXACT.format(number));
    this.plot = new window.uPlot({
      width: this.width(), height: HEIGHT, cursor: { y: false }, legend: { live: true },
      scales: log ? { ...scales, y: { distr: 3 } } : scales,
      hooks: {
        setCursor: [(plot) => { if (plot.cursor.left < 0) lastValues(plot); }],
        setSelect: [(plot) => { if (plot.select.width > 0) { this.zoomed = true; this.onZoom?.(); } }],
      },
      ...(tzDate ? { tzDate } : {}),
      axes: [{ ...axis, values: figures, ...x.axis }, { ...axis, values: figures, size: axisSize, ...y }],
      series: [x.series ?? { label: gettext("step") }, ...this.lines.map((label, i) => ({
        label, value, spanGaps: true, stroke: colour(pale.includes(i) ? pale.indexOf(i) : i),
        ...(pale.includes(i) ? { alpha: 0.3, width: 1 } : { width: 1.75 }),
        points: { show: this.data[0].length < 30 }, ...this.options.axis.series,
      }))],
    }, this.data, this.box);
    this.zoomed = false;
    lastValues(this.plot);
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
