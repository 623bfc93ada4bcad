// The memory bar: one part per owner, the memory without a known owner, and the driver's
// reserve at the right end.

import { el, setAttr, setClass, setText, setVars } from "../dom.js";
import { gib, gibFigure } from "../format.js";
import { ownerOf } from "./words.js";
import { gettext } from "../words.js";

const TONES = 5;
const LEAST_RESERVE = 0.02;

export function makeMemory() {
  const bar = el("div", { class: "mem-bar" });
  const used = el("span", { class: "mem-used" });
  const owners = el("span", { class: "mem-owners truncate" });
  return { root: el("div", { class: "mem" }, bar, el("div", { class: "mem-line" }, owners, used)), bar, used, owners };
}

/** [{name, bytes, tone}] by owner, the largest first. */
export function byOwner(processes) {
  const sums = new Map();
  for (const process of processes ?? []) {
    const [name, bytes] = [ownerOf(process), process.memory_bytes ?? 0];
    if (bytes) sums.set(name, (sums.get(name) ?? 0) + bytes);
  }
  return [...sums].map(([name, bytes]) => ({ name, bytes })).sort((a, b) => b.bytes - a.bytes);
}

function parts(cell) {
  const total = cell.info.memory_total_bytes;
  const used = cell.row?.memoryUsedBytes;
  const owned = byOwner(cell.detail?.processes);
  const sum = owned.reduce((all, part) => all + part.bytes, 0);
  const list = owned.map((part, i) => ({ ...part, look: `mem-part tone-${i % TONES}` }));
  // A card that does not report its total memory shows no shares.
  if (!total) return { list: [], owned, used, total: null, reserve: null };
  if (used !== null && used !== undefined && used - sum > total * 0.002) {
    list.push({ name: gettext("not attributed"), bytes: used - sum, look: "mem-part tone-none" });
  }
  const reserve = cell.detail?.memory_reserved_bytes;
  // A thinner part looks like a stray line. The title of the figure gives its size.
  if (reserve > total * LEAST_RESERVE) list.push({ name: "driver", bytes: reserve, look: "mem-part mem-reserve" });
  return { list, owned, used, total, reserve };
}

export function drawMemory(view, cell) {
  const { list, owned, used, total, reserve } = parts(cell);
  while (view.bar.childElementCount < list.length) view.bar.append(el("i"));
  while (view.bar.childElementCount > list.length) view.bar.lastElementChild.remove();
  list.forEach((part, i) => {
    const node = view.bar.children[i];
    setClass(node, part.look);
    setVars(node, { "--part": (part.bytes / total).toFixed(4) });
  });
  const split = list.map((part) => `${part.name} ${gib(part.bytes)}`).join(", ");
  setAttr(view.bar, "title", split || null);
  setText(view.owners, owned.map((part) => `${part.name} ${gibFigure(part.bytes)}`).join(" · "));
  setText(view.used, `${gibFigure(used)} / ${gibFigure(total)} GiB`);
  setAttr(view.used, "title", reserve ? gettext("The driver reserves another {size}.", { size: gib(reserve) }) : null);
}
