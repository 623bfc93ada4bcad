// All figures of a Gpu that are not in the head of its page. A figure that it does not
// report is a dash whose title gives the reason.

import { el, setAttr, setText } from "../dom.js";
import { UNKNOWN, bytes, ghz, pct } from "../format.js";
import { throttleReasons } from "./states.js";
import { gettext } from "../words.js";

const SILENT = gettext("This GPU does not report it.");
const OPEN_ONLY = gettext("Read only while this page is open; the first figure takes a few seconds.");
const rate = (value) => (value === undefined ? null : `${bytes(value)}/s`);
const known = (value, words) => (value === undefined || value === null ? null : words(value));
const yes = (value) => known(value, (flag) => (flag ? gettext("yes") : gettext("no")));

function energy(joules) {
  const kwh = joules / 3.6e6;
  return kwh >= 1 ? `${kwh.toFixed(1)} kWh` : `${(kwh * 1000).toFixed(0)} Wh`;
}

/** [label, text from the details (null: not reported), reason why it may be missing] */
const FIGURES = [
  [gettext("Throttled by"), (d) => known(d.throttle, (reasons) => throttleReasons(reasons) || gettext("nothing"))],
  [gettext("Memory bandwidth"), (d) => known(d.memory_util_pct, pct)],
  [gettext("Memory clock"), (d) => known(d.memory_clock_mhz, ghz)],
  [gettext("Memory temperature"), (d) => known(d.memory_temperature_celsius, (v) => `${v} °C`)],
  [gettext("Fan"), (d) => known(d.fan_pct, pct)],
  [gettext("Performance state"), (d) => known(d.pstate, (v) => `P${v}`)],
  [gettext("Encoder"), (d) => known(d.encoder_pct, pct)],
  [gettext("Decoder"), (d) => known(d.decoder_pct, pct)],
  [gettext("Energy since the driver was loaded"), (d) => known(d.energy_joules, energy)],
  [gettext("Memory errors, corrected"), (d) => known(d.ecc_corrected, String)],
  [gettext("Memory errors, uncorrected"), (d) => known(d.ecc_uncorrected, String)],
  [gettext("Rows remapped"), (d) => known(d.row_remap_uncorrected, (v) => `${v + (d.row_remap_corrected ?? 0)}`)],
  [gettext("Remapping pending"), (d) => yes(d.remap_pending)],
  [gettext("Remapping failed"), (d) => yes(d.remap_failure)],
  [gettext("Retired pages"), (d) => known(d.retired_pages, String)],
  [gettext("PCIe link"), (d) => known(d.pcie_gen, (v) => gettext("gen {gen} ×{width}", { gen: v, width: d.pcie_width ?? "?" }))],
  [gettext("PCIe out"), (d) => rate(d.pcie_tx_bytes_per_second), OPEN_ONLY],
  [gettext("PCIe in"), (d) => rate(d.pcie_rx_bytes_per_second), OPEN_ONLY],
  [gettext("NVLink out"), (d) => rate(d.nvlink_tx_bytes_per_second), OPEN_ONLY],
  [gettext("NVLink in"), (d) => rate(d.nvlink_rx_bytes_per_second), OPEN_ONLY],
];

export class Figures {
  constructor(list) {
    this.shown = FIGURES.map(([label, read, why = SILENT]) => {
      const value = el("dd", { text: UNKNOWN });
      list.append(el("div", {}, el("dt", { text: label }), value));
      return { read, why, value };
    });
  }

  paint(detail) {
    for (const { read, why, value } of this.shown) {
      const text = detail ? read(detail) : null;
      setText(value, text ?? UNKNOWN);
      setAttr(value, "title", text === null ? why : null);
    }
  }
}

/** One row per MIG instance: name, memory. [] for a Gpu without instances. */
export function instanceRows(detail) {
  return (detail?.mig_instances ?? []).map((one) => el("tr", {},
    el("td", { text: one.name ?? UNKNOWN }),
    el("td", { class: "mono truncate", text: one.uuid }),
    el("td", { class: "num", text: gettext("{used} of {total}", { used: bytes(one.memory_used_bytes), total: bytes(one.memory_total_bytes) }) })));
}
