// Draws the last figures of an endpoint: tiles, table of models, predicted and actual time.

import { el, setAttr, setText } from "../dom.js";
import { bytes } from "../format.js";
import { gettext } from "../words.js";

const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);
const ms = (value) => (value === null || value === undefined ? "–" : value.toFixed(value < 10 ? 2 : 1));

function tiles(told) {
  setText(at("f-provider"), told.provider === "cuda" ? "GPU (CUDA)" : "CPU");
  setText(at("f-busy"), `${(told.busy_ratio * 100).toFixed(1)} %`);
  setText(at("f-waiting"), told.waiting);
  setText(at("f-room"), gettext("{loaded} of {room}", { loaded: bytes(told.loaded_bytes), room: bytes(told.room_bytes) }));
  setText(at("f-process"), bytes(told.process_bytes));
}

function stateOf(model) {
  const word = model.state === "ready" && !model.loaded ? gettext("ready, not in memory") : model.state;
  return model.note ? `${word} (${model.note})` : word;
}

function row(line, model) {
  const put = (part, text) => setText(line.querySelector(`[data-part="${part}"]`), text);
  put("state", stateOf(model));
  for (const part of ["p50", "p95", "p99"]) put(part, ms(model.latency_ms?.[part]));
  put("in_time", model.in_time);
  put("late", model.late + model.dropped);
  put("refused", model.refused + model.full);
  put("batch", model.runs ? (model.rows / model.runs).toFixed(1) : "–");
  put("memory", bytes(model.memory_bytes));
}

/** Points of the last requests. Both axes have the same scale, so that the diagonal means "equal". */
function plot(model) {
  const points = model?.points ?? [];
  const most = Math.max(1e-3, ...points.flat());
  const place = (value) => (value / most) * 170;
  const group = at("serve-points");
  while (group.childElementCount < points.length) {
    const dot = document.createElementNS(SVG, "circle");
    dot.setAttribute("class", "serve-point");
    dot.setAttribute("r", "2.5");
    group.append(dot);
  }
  while (group.childElementCount > points.length) group.lastElementChild.remove();
  points.forEach(([predicted, actual], index) => {
    setAttr(group.children[index], "cx", (20 + place(predicted)).toFixed(1));
    setAttr(group.children[index], "cy", (180 - place(actual)).toFixed(1));
  });
  const error = model?.error_ms;
  setText(at("predicted-words"), error
    ? gettext("Prediction error: median {median} ms, 95th percentile {high} ms. Refused: {refused}. Accepted, but late: {late}. Both axes end at {most} ms.", { median: ms(error.p50), high: ms(error.p95), refused: model.refused + model.full, late: model.late + model.dropped, most: ms(most) })
    : gettext("No requests in the last five minutes."));
}

function profile(model) {
  const rows = (model?.profile ?? []).map((one) => el("tr", {},
    ...[one.batch, one.runs, ms(one.median_ms), ms(one.p99_ms), ms(one.predicted_ms)].map((text) => el("td", { class: "num", text }))));
  if (rows.length) at("serve-profile").replaceChildren(...rows);
}

/** Shows the figures. Models that the page does not list yet appear after a reload. */
export function showFigures(told, chosen) {
  tiles(told);
  for (const model of told.models) {
    const line = document.querySelector(`tr[data-model="${CSS.escape(model.name)}"]`);
    if (line) row(line, model);
  }
  const model = told.models.find((one) => one.name === chosen);
  plot(model);
  profile(model);
}
