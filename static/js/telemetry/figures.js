// Everything a Gpu says that the head of its page has no room for. What it does not
// say is a dash, and hovering tells why.

import { el, setAttr, setText } from "../dom.js";
import { UNKNOWN, bytes, ghz, pct } from "../format.js";
import { throttleWords } from "./states.js";

const SILENT = "This GPU does not report it.";
const OPEN_ONLY = "Read only while this page is open; the first figure takes a few seconds.";
const rate = (value) => (value === undefined ? null : `${bytes(value)}/s`);
const known = (value, words) => (value === undefined || value === null ? null : words(value));
const yes = (value) => known(value, (flag) => (flag ? "yes" : "no"));

function energy(joules) {
  const kwh = joules / 3.6e6;
  return kwh >= 1 ? `${kwh.toFixed(1)} kWh` : `${(kwh * 1000).toFixed(0)} Wh`;
}

/** [label, what the details say (null: nothing), why it may be missing] */
const FIGURES = [
  ["Throttled by", (d) => known(d.throttle, (reasons) => throttleWords(reasons).replace("throttled: ", "") || "nothing")],
  ["Memory bandwidth", (d) => known(d.memory_util_pct, pct)],
  ["Memory clock", (d) => known(d.memory_clock_mhz, ghz)],
  ["Memory temperature", (d) => known(d.memory_temperature_celsius, (v) => `${v} °C`)],
  ["Fan", (d) => known(d.fan_pct, pct)],
  ["Performance state", (d) => known(d.pstate, (v) => `P${v}`)],
  ["Encoder", (d) => known(d.encoder_pct, pct)],
  ["Decoder", (d) => known(d.decoder_pct, pct)],
  ["Energy since the driver was loaded", (d) => known(d.energy_joules, energy)],
  ["Memory errors, corrected", (d) => known(d.ecc_corrected, String)],
  ["Memory errors, uncorrected", (d) => known(d.ecc_uncorrected, String)],
  ["Rows remapped", (d) => known(d.row_remap_uncorrected, (v) => `${v + (d.row_remap_corrected ?? 0)}`)],
  ["Remapping pending", (d) => yes(d.remap_pending)],
  ["Remapping failed", (d) => yes(d.remap_failure)],
  ["Retired pages", (d) => known(d.retired_pages, String)],
  ["PCIe link", (d) => known(d.pcie_gen, (v) => `gen ${v} ×${d.pcie_width ?? "?"}`)],
  ["PCIe out", (d) => rate(d.pcie_tx_bytes_per_second), OPEN_ONLY],
  ["PCIe in", (d) => rate(d.pcie_rx_bytes_per_second), OPEN_ONLY],
  ["NVLink out", (d) => rate(d.nvlink_tx_bytes_per_second), OPEN_ONLY],
  ["NVLink in", (d) => rate(d.nvlink_rx_bytes_per_second), OPEN_ONLY],
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

/** One row per MIG instance: name, memory; [] where the Gpu is whole. */
export function instanceRows(detail) {
  return (detail?.mig_instances ?? []).map((one) => el("tr", {},
    el("td", { text: one.name ?? UNKNOWN }),
    el("td", { class: "mono truncate", text: one.uuid }),
    el("td", { class: "num", text: `${bytes(one.memory_used_bytes)} of ${bytes(one.memory_total_bytes)}` })));
}
