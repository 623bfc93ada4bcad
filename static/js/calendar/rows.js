// The timeline's rows: a folding one per node and class, one per GPU under it.
import { el } from "../dom.js";
import { gib } from "../format.js";
import { shortClass } from "./words.js";

/** [{id, gpuIds, group?, folded?}] from top to bottom, as they are drawn. */
export function rowsOf(groups, folded) {
  return groups.flatMap((group) => {
    const gpus = group.gpus.map((gpu) => ({ id: String(gpu.id), gpuIds: gpu.bookable ? [gpu.id] : [] }));
    const isFolded = folded.has(group.key);
    const all = { id: group.key, group, folded: isFolded, gpuIds: gpus.flatMap((row) => row.gpuIds) };
    return isFolded ? [all] : [all, ...gpus];
  });
}

/** EventCalendar's resources for the same rows. */
export function resourcesOf(groups, folded) {
  return groups.map((group) => ({
    id: group.key, expanded: !folded.has(group.key), extendedProps: { group },
    children: group.gpus.map((gpu) => ({ id: String(gpu.id), extendedProps: { gpu } })),
  }));
}

/** What stands at the left of a row. Before the first answer there is one bare row. */
export function rowLabel({ gpu, group }) {
  if (!gpu && !group) return el("span");
  if (group) {
    return el("span", { class: "row-group" }, el("strong", { text: group.node }),
      el("span", { class: "row-class", text: `${group.gpus.length} × ${shortClass(group.gpuClass)}` }));
  }
  return el("span", { class: gpu.bookable ? "row-gpu" : "row-gpu is-closed" },
    el("span", { class: "row-index", text: `GPU ${gpu.index}` }),
    el("span", { class: "row-memory", text: gpu.bookable ? gib(gpu.memory_total_bytes) : "closed" }));
}
