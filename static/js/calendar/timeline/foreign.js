// A warning for a GPU that a user without a right to it uses now: it can be booked,
// but may not be free at once.
import { el } from "../../dom.js";
import { icon } from "../../icons.js";
import { gpuWords } from "../words.js";
import { gettext } from "../../words.js";

/** "Someone else's process uses node-b 3 now." */
export function foreignNode(gpuIds, store, more = "") {
  const gpus = gpuIds.map((id) => store.gpu(id)).filter(Boolean);
  return el("span", { class: "foreign-note" }, icon("alert"),
    el("span", { text: gettext("Someone else’s process uses {gpus} now.{more}", { gpus: gpuWords(gpus), more }) }));
}
