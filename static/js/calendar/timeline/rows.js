// The timeline's rows: a folding one per node and class, one per GPU under it.
import { el, setText } from "../../dom.js";
import { gib } from "../../format.js";
import { closureWords } from "./closures.js";
import { moment, shortClass } from "../words.js";
import { toWall } from "../zone.js";
import { gettext } from "../../words.js";

const FOLD_FROM_GPUS = 48;

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

/** A star that can be switched. page.js handles its "star" events. */
function starNode(what, on, name) {
  return el("button", {
    type: "button", class: "star", "aria-pressed": String(Boolean(on)), "aria-label": gettext("Favourite: {name}", { name }), title: gettext("Favourite: listed and picked first"),
    on: { click: ({ currentTarget }) => currentTarget.dispatchEvent(new CustomEvent("star", { bubbles: true, detail: { ...what, wanted: !on } })) },
  }, el("span", { "aria-hidden": "true", text: on ? "★" : "☆" }));
}

function stateWord(gpu) {
  return gpu.bookable ? gpu.memory_total_bytes && gib(gpu.memory_total_bytes) || "" : gpu.out || gettext("not available");
}

/** The label of a row. Before the first answer the timeline has one empty row. */
export function rowLabel({ gpu, group }) {
  if (!gpu && !group) return el("span");
  if (group) {
    return el("span", { class: "row-group" }, el("strong", { text: group.node }),
      starNode({ gpu_class: group.gpuClass }, group.gpus.every((gpu) => gpu.favourite), shortClass(group.gpuClass)),
      el("span", { class: "row-class", text: `${group.gpus.length} × ${shortClass(group.gpuClass)}` }),
      el("span", { class: "row-free", "data-group": group.key }));
  }
  return el("span", { class: gpu.bookable ? "row-gpu" : "row-gpu is-closed" },
    el("span", { class: "row-index", text: gettext("GPU {index}", { index: gpu.index }) }),
    starNode({ gpu: gpu.id }, gpu.favourite, `${gpu.node} ${gpu.index}`),
    el("span", { class: "row-memory", "data-gpu": gpu.id, text: stateWord(gpu), title: gpu.out_reason || undefined }),
    gpu.out_reason ? el("span", { class: "visually-hidden", text: gpu.out_reason }) : null);
}

/** Groups that start folded in a large lab: all but the first and those with the reader's bookings. */
export function foldedAtFirst(groups, reservations) {
  if (groups.reduce((n, group) => n + group.gpus.length, 0) <= FOLD_FROM_GPUS) return new Set();
  const own = new Set(reservations.filter((r) => r.mine).flatMap((r) => r.gpu_ids));
  return new Set(groups.slice(1).filter((group) => !group.gpus.some((gpu) => own.has(gpu.id)))
    .map((group) => group.key));
}

/** Write the number of free GPUs beside each group. Write nothing if
 *  another time is in view, since the store then has no facts about now. */
export function tellFree(host, store, now) {
  const soon = new Date(now.getTime() + 60_000);
  const known = store.start <= now && now < store.end;
  const groups = new Map(store.groups().map((group) => [group.key, group]));
  for (const node of host.querySelectorAll(".row-free")) {
    const free = groups.get(node.dataset.group)?.gpus.filter((gpu) => store.isFree(gpu, now, soon)).length ?? 0;
    setText(node, known ? (free ? gettext("{n} free", { n: free }) : gettext("full")) : "");
    node.classList.toggle("is-full", !free);
  }
}

/** Write the end of a closed time at each closed GPU. closureWords() gives the reason. */
export function tellClosed(host, store, now, nowWall, zone) {
  for (const node of host.querySelectorAll(".row-memory[data-gpu]")) {
    const gpu = store.gpu(Number(node.dataset.gpu));
    const closure = gpu?.bookable && store.closureOf(gpu, now);
    if (closure) {
      setText(node, gettext("closed until {time}", { time: moment(toWall(closure.end, zone), nowWall) }));
      node.title = closureWords(closure, zone);
    } else if (node.classList.contains("is-shut") && gpu) {
      setText(node, stateWord(gpu));
      node.title = gpu.out_reason;
    }
    node.classList.toggle("is-shut", Boolean(closure));
  }
}
