// The curves of several runs in one chart: one metric over the step or the time.

import { pageData, setText } from "../dom.js";
import { Plot } from "./plot.js";
import { positive, smoothed } from "./smooth.js";
import { gettext } from "../words.js";

const page = pageData("compare-page");
const at = (id) => document.getElementById(id);

async function numbers(run) {
  try {
    const answer = await fetch(run.numbers, { credentials: "same-origin" });
    return answer.ok ? (await answer.json()).rows : [];
  } catch (error) {
    if (error instanceof TypeError) return []; // unreachable: the table has its figures, the curve is missing
    throw error;
  }
}

const runs = await Promise.all(page.runs.map(async (run) => ({ ...run, rows: await numbers(run) })));
const plot = new Plot(at("charts"), page.metric.replaceAll("_", " "), [gettext("no run")], { scales: { x: { time: false } } });
plot.onZoom = () => { at("chart-reset").hidden = false; };

/** [x, y] of a run, ascending in x. */
function curve(rows, x) {
  const points = rows.filter((row) => Number.isFinite(row[x]) && Number.isFinite(row[page.metric]));
  const kept = points.filter((row, i) => i === 0 || row[x] > points[i - 1][x]);
  return [kept.map((row) => row[x]), kept.map((row) => row[page.metric])];
}

function draw() {
  const x = at("chart-x").value;
  const weight = Number(at("chart-smooth").value);
  const fit = at("chart-log").checked ? positive : (values) => values;
  const drawn = runs.map((run) => ({ label: run.label, data: curve(run.rows, x) })).filter(({ data }) => data[0].length);
  at("chart-none").hidden = drawn.length === runs.length;
  const missing = runs.length - drawn.length;
  setText(at("chart-none"), x === "step"
    ? gettext("{missing} of {count} runs logged no {metric}.", { missing, count: runs.length, metric: page.metric })
    : gettext("{missing} of {count} runs logged no {metric} with a time (seconds).", { missing, count: runs.length, metric: page.metric }));
  if (!drawn.length) { plot.box.hidden = true; return; }
  plot.box.hidden = false;
  const tables = drawn.map(({ data: [xs, ys] }) => [xs, fit(weight ? smoothed(ys, weight) : ys)]);
  const pale = weight ? drawn.map(({ data: [xs, ys] }) => [xs, fit(ys)]) : [];
  const labels = drawn.map(({ label }) => label);
  plot.options.x = { series: { label: x === "step" ? gettext("step") : gettext("seconds") } };
  plot.options.pale = pale.map((_, i) => drawn.length + i);
  plot.show(window.uPlot.join([...tables, ...pale]), [...labels, ...(weight ? labels.map((label) => gettext("{label}, as logged", { label })) : [])]);
}

at("chart-x").addEventListener("change", () => { draw(); plot.redraw(); });
at("chart-smooth").addEventListener("input", draw);
at("chart-log").addEventListener("change", () => { plot.options.log = at("chart-log").checked; draw(); plot.redraw(); });
at("chart-reset").addEventListener("click", () => { plot.zoomOut(); at("chart-reset").hidden = true; });
const redraw = () => plot.redraw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("theme:changed", redraw);
new ResizeObserver(() => plot.fit()).observe(at("charts"));
for (const select of ["c-metric", "c-best"]) at(select).addEventListener("change", () => at("compare-form").requestSubmit());
draw();
