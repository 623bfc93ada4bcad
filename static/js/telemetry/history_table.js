// The same history as a table, for readers who cannot use charts. It is made when it is
// opened, with few enough rows for a screen reader.

import { el } from "../dom.js";
import { UNKNOWN, gib, pct } from "../format.js";
import { absolute } from "../time.js";
import { gettext } from "../words.js";

export const TABLE_POINTS = 48;
const HEADS = [gettext("From"), gettext("Utilization, lowest"), gettext("mean"), gettext("highest"), gettext("Memory, highest"), gettext("Power, mean"), gettext("Energy")];

const watts = (value) => (value === null ? UNKNOWN : `${Math.round(value)} W`);

/** Joules as kWh: "1.25 kWh". */
export function energy(joules) {
  if (joules === null || joules === undefined) return UNKNOWN;
  const kwh = joules / 3_600_000;
  return kwh < 0.1 ? `${(kwh * 1000).toFixed(kwh < 0.01 ? 1 : 0)} Wh` : `${kwh.toFixed(kwh < 10 ? 2 : 0)} kWh`;
}

function row(series, i) {
  const cells = [
    pct(series.util_min_pct[i]), pct(series.util_avg_pct[i]), pct(series.util_max_pct[i]),
    gib(series.memory_max_bytes[i]), watts(series.power_avg_watts[i]), energy(series.energy_joules[i]),
  ];
  const when = el("th", { scope: "row", class: "nowrap", text: absolute(new Date(series.at[i] * 1000)) });
  if (!series.n[i]) return el("tr", {}, when, el("td", { class: "muted", colspan: cells.length, text: gettext("no reading") }));
  return el("tr", {}, when, ...cells.map((text) => el("td", { class: "num", text })));
}

export function tableOf(series) {
  const head = HEADS.map((text, i) => el("th", { scope: "col", class: i ? "num" : null, text }));
  const table = el("table", { class: "table table-dense" },
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...series.at.map((_, i) => row(series, i))));
  return el("div", { class: "table-wrap history-table", tabindex: 0, role: "region", "aria-label": gettext("History as a table") }, table);
}
