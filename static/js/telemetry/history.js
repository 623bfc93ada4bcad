// The history of a Gpu, a node, a group or a reservation: charts of any stored time.
// The page gives the data "history-data": {path, first, whole?, memory_total_bytes?,
// power_limit_watts?, per_gpu}; templates/telemetry/history/_history.html gives the elements.

import { api } from "../api.js";
import { el, pageData, setText } from "../dom.js";
import { duration } from "../format.js";
import { absolute, serverNow } from "../time.js";
import { Plot } from "./history_plot.js";
import { RANGES, queryOf, readState, same, shifted, spanOf, writeState, zoomed } from "./history_state.js";
import { TABLE_POINTS, energy, tableOf } from "./history_table.js";
import { gettext } from "../words.js";

const AGAIN_MS = 120_000;
const GIB = 2 ** 30;
const scaled = (values, by) => values.map((value) => (value === null ? null : value / by));
const now = () => Math.floor(serverNow() / 1000);

function chartsOf(page) {
  const each = page.per_gpu;
  return [
    { title: gettext("Utilization, %"), most: 100, label: gettext("mean"), columns: (s) => [s.util_avg_pct, s.util_min_pct, s.util_max_pct] },
    { title: each ? gettext("Memory used per GPU, GiB") : gettext("Memory used, GiB"), most: page.memory_total_bytes / GIB, label: gettext("mean"), columns: (s) => [scaled(s.memory_avg_bytes, GIB), null, scaled(s.memory_max_bytes, GIB)] },
    { title: each ? gettext("Power per GPU, W") : gettext("Power, W"), most: page.power_limit_watts, label: gettext("mean"), columns: (s) => [s.power_avg_watts, null, null] },
    { title: gettext("Temperature, °C"), label: gettext("highest"), columns: (s) => [s.temperature_max_celsius, null, null] },
  ];
}

export class History {
  constructor(root, page) {
    this.page = page;
    this.part = (name) => root.querySelector(`[data-history="${name}"]`);
    this.charts = chartsOf(page);
    this.plots = [];
    this.state = readState(page.first);
    this.wire();
    new ResizeObserver(() => this.plots.forEach((plot) => plot.fit(this.width()))).observe(this.part("charts"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    document.addEventListener("theme:changed", () => this.draw());
    addEventListener("popstate", () => this.show(readState(page.first), { kept: true }));
    setInterval(() => { if (!document.hidden && spanOf(this.state, now())[1] >= now()) this.load(); }, AGAIN_MS);
    this.load();
  }

  wire() {
    const ranges = this.page.whole ? [["whole", gettext("Whole time")], ...RANGES] : RANGES;
    this.buttons = ranges.map(([name, label]) => el("button", {
      type: "button", text: label, on: { click: () => this.show(name === "whole" ? this.page.whole : { range: name }) },
    }));
    this.targets = ranges.map(([name]) => (name === "whole" ? this.page.whole : { range: name }));
    this.part("ranges").replaceChildren(...this.buttons);
    this.part("earlier").addEventListener("click", () => this.show(shifted(this.state, -1, now())));
    this.part("later").addEventListener("click", () => this.show(shifted(this.state, 1, now())));
    this.part("reset").addEventListener("click", () => this.show(this.page.first));
    this.each = this.part("each");
    if (this.each) this.each.checked = new URLSearchParams(location.search).has("each");
    this.each?.addEventListener("change", () => {
      const query = new URLSearchParams(location.search);
      if (this.each.checked) query.set("each", "1");
      else query.delete("each");
      history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}${location.hash}`);
      this.load();
    });
    this.part("table").addEventListener("toggle", () => this.fillTable());
  }

  show(state, { kept = false } = {}) {
    this.state = state;
    if (!kept) writeState(state, this.page.first);
    this.load();
  }

  /** Fetches the time in view. An answer to an older request is dropped. */
  async load() {
    this.fetching?.abort();
    const fetching = this.fetching = new AbortController();
    const points = Math.min(999, Math.max(60, Math.floor(this.width() * 0.75)));
    this.paintTools();
    try {
      const answer = await api("GET", `${this.page.path}?${queryOf(this.state, points)}`, undefined, { signal: fetching.signal });
      this.lines = this.each?.checked ? await this.linesOf(answer, points, fetching.signal) : null;
      this.answer = answer;
      this.draw();
      this.fillTable();
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message);
    }
  }

  /** [{name, series}]: every GPU over the time of the node's answer. */
  linesOf({ start, end }, points, signal) {
    return Promise.all(this.page.gpus.map(async ({ path, name }) => {
      const { series } = await api("GET", `${path}?from=${start}&to=${end}&points=${points}`, undefined, { signal });
      return { name, series };
    }));
  }

  paintTools() {
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(same(this.targets[i], this.state))));
    this.part("reset").hidden = same(this.state, this.page.first);
    this.part("later").disabled = spanOf(this.state, now())[1] >= now();
    this.part("csv").href = `/api/v1${this.page.path}?${queryOf(this.state, 999)}&format=csv`;
  }

  draw() {
    if (!this.answer) return;
    const { series, start, end } = this.answer;
    this.plots.forEach((plot) => plot.destroy());
    const known = this.charts.filter((chart) => chart.columns(series)[0].some((value) => value !== null));
    const onZoom = (from, to) => this.show(zoomed(from, to));
    this.plots = known.map((chart) => new Plot(this.part("charts"), chart, series, {
      most: chart.most || null, width: this.width(), span: [start, end], onZoom, lines: this.lines,
    }));
    this.part("band").hidden = Boolean(this.lines);
    const joules = series.energy_joules.filter((value) => value !== null);
    const step = duration(series.step_seconds);
    const total = joules.length ? energy(joules.reduce((a, b) => a + b, 0)) : "";
    const span = gettext("{start} to {end}", { start: absolute(new Date(start * 1000)), end: absolute(new Date(end * 1000)) });
    setText(this.part("span"), total ? gettext("{span}, a point is {step}; energy {total}", { span, step, total }) : gettext("{span}, a point is {step}", { span, step }));
    this.say(series.n.some(Boolean) ? "" : this.page.empty);
  }

  say(words) {
    this.part("empty").hidden = !words;
    setText(this.part("empty"), words);
  }

  async fillTable() {
    const details = this.part("table");
    if (!details.open || !this.answer) return;
    const { start, end } = this.answer;
    try {
      const { series } = await api("GET", `${this.page.path}?from=${start}&to=${end}&points=${TABLE_POINTS}`);
      details.querySelector(".history-table")?.remove();
      details.append(tableOf(series));
    } catch (error) {
      this.say(error.message);
    }
  }

  width() { return Math.max(this.part("charts").clientWidth, 200); }
}

const root = document.getElementById("history");
if (root) new History(root, pageData("history-data"));
