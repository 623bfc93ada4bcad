// One chart of a history: the mean as a line, lowest to highest as a band, holes
// shaded. Dragging over it shows that time.

import { el } from "../dom.js";
import { absolute, clock, siteZone } from "../time.js";
import { gettext, locale } from "../words.js";

const HEIGHT = 180;
const DAY = 86_400;
const COLOURS = 6;
const DASHES = [[], [6, 3], [2, 3]];
const DATE = new Intl.DateTimeFormat(locale, { timeZone: siteZone, day: "numeric", month: "short" });
const MONTH = new Intl.DateTimeFormat(locale, { timeZone: siteZone, month: "short", year: "2-digit" });

/** Times short enough for the axis: "14:00", "Mon 14:00", "21 Nov" or "Nov 25". */
function labels(_plot, splits, _axis, _space, step) {
  const form = step >= 27 * DAY ? MONTH : step >= DAY ? DATE : null;
  return splits.map((at) => (form ? form.format(at * 1000) : clock(new Date(at * 1000))));
}

/** Reads colours from the page: a canvas does not support light-dark(). */
function colours(box) {
  const style = getComputedStyle(box);
  return {
    line: style.accentColor, low: style.outlineColor, high: style.textDecorationColor, text: style.color, grid: style.borderTopColor,
    hole: style.backgroundColor, font: `12px ${style.fontFamily}`,
  };
}

/** Shades the buckets without data. */
function shadeHoles(plot, n, step, colour) {
  const { ctx, bbox } = plot;
  const [at] = plot.data;
  ctx.save();
  ctx.fillStyle = colour;
  for (let i = 0; i < at.length; i += 1) {
    if (n[i]) continue;
    let end = i;
    while (end + 1 < at.length && !n[end + 1]) end += 1;
    const left = Math.max(bbox.left, plot.valToPos(at[i], "x", true));
    const right = Math.min(bbox.left + bbox.width, plot.valToPos(at[end] + step, "x", true));
    if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
    i = end;
  }
  ctx.restore();
}

/** uPlot's columns of several lines over all of their times. */
function joined(columns) {
  return window.uPlot.join(columns.map(([at, values]) => [at, values]));
}

/** Points without a neighbour, which a line would not show. */
function lonely(plot, index) {
  const values = plot.data[index];
  const known = (i) => values[i] !== null && values[i] !== undefined;
  return values.flatMap((_, i) => (known(i) && !known(i - 1) && !known(i + 1) ? [i] : []));
}

export class Plot {
  /** chart: {title, label, most, columns}; onZoom(from, to) in Unix seconds;
   *  lines: [{name, series}], one line each instead of the mean and its band. */
  constructor(host, chart, series, { most, width, span, onZoom, lines = null }) {
    this.box = el("figure", { class: "history-chart" }, el("figcaption", { text: chart.title }));
    host.append(this.box);
    const [mean, low, high] = chart.columns(series);
    const extra = [["lowest", low], ["highest", high]].filter(([, column]) => column);
    const names = extra.map(([name]) => name);
    const settings = lines?.length
      ? this.settings(chart, [], lines[0].series, { most, width, span, onZoom })
      : this.settings(chart, names, series, { most, width, span, onZoom });
    let data = [series.at, mean, ...extra.map(([, column]) => column)];
    if (lines?.length) {
      data = joined(lines.map((line) => [line.series.at, chart.columns(line.series)[0]]));
      settings.series = [settings.series[0], ...lines.map(({ name }, at) => ({
        label: name, stroke: this.#colour(at), dash: DASHES[Math.floor(at / COLOURS)] ?? [], width: 1.5, points: { show: true, size: 4, filter: lonely },
      }))];
      settings.hooks.drawClear = [];
    }
    this.plot = new window.uPlot(settings, data, this.box);
    this.plot.root.setAttribute("aria-hidden", "true");
  }

  /** The colour of one of several lines. A canvas does not support var(). */
  #colour(at) {
    const probe = el("i", { class: `history-line-${at % COLOURS}` });
    this.box.append(probe);
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  }

  settings(chart, names, series, { most, width, span, onZoom }) {
    const { line, low, high, text, grid, hole, font } = colours(this.box);
    const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const faint = { lowest: { stroke: low, dash: [4, 3] }, highest: { stroke: high, dash: [1, 2] } };
    return {
      width, height: HEIGHT,
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "history" }, bind: { dblclick: () => null } },
      tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), siteZone),
      scales: { x: { range: () => span }, y: most ? { range: [0, most] } : { range: (_plot, _low, top) => [0, (top || 1) * 1.1] } },
      axes: [{ ...axis, values: labels, space: 84, size: 34 }, { ...axis, size: 52 }],
      series: [
        { label: gettext("time"), value: (_plot, at) => (at === null ? "–" : absolute(new Date(at * 1000))) },
        { label: chart.label, stroke: line, width: 1.5, points: { show: true, size: 4, filter: lonely } },
        ...names.map((name) => ({ ...faint[name], width: 1, points: { show: false }, label: name })),
      ],
      bands: names.length === 2 ? [{ series: [3, 2], fill: `color-mix(in srgb, ${line} 18%, transparent)` }] : [],
      hooks: {
        drawClear: [(plot) => shadeHoles(plot, series.n, series.step_seconds, hole)],
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((x) => plot.posToVal(x, "x"));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          onZoom(from, to);
        }],
      },
    };
  }

  fit(width) {
    if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
  }

  destroy() {
    this.plot.destroy();
    this.box.remove();
  }
}
