// Closed time as it lies behind the bars: maintenance, blackout, a course's hours.
// Each has a pattern, a sign and a word of its own: none is told by colour alone.
import { el } from "../dom.js";
import { icon } from "../icons.js";
import { clockOf } from "./words.js";
import { toWall } from "./zone.js";

const WORDS = { maintenance: "Maintenance", blackout: "Closed", teaching: "Course" };
const SIGNS = { maintenance: "maintenance", blackout: "lock", teaching: "users" };

/** "Maintenance 14:00–18:00: new fans", "Course ml-101 ..." */
export function closureWords(closure, zone) {
  const [from, until] = [closure.start, closure.end].map((at) => clockOf(toWall(at, zone)));
  const kind = WORDS[closure.kind] ?? "Closed";
  const whose = closure.kind === "teaching" && closure.account ? ` ${closure.account}` : "";
  const open = closure.open ? ", open to you" : "";
  return `${kind}${whose} ${from}–${until}${open}${closure.reason ? `: ${closure.reason}` : ""}`;
}

/** The timeline's background events; rows that are not drawn are left out. */
export function closureEvents(closures, rowIds, zone) {
  return closures.map((closure) => ({
    id: `c${closure.id}`,
    resourceIds: closure.gpu_ids.map(String).filter((id) => rowIds.has(id)),
    start: `${toWall(closure.start, zone)}:00`, end: `${toWall(closure.end, zone)}:00`,
    display: "background", classNames: ["is-closure", `is-${closure.kind}`],
    extendedProps: { ground: true, closure },
  })).filter((event) => event.resourceIds.length);
}

export function closureFace(closure, zone) {
  const words = closureWords(closure, zone);
  return el("span", { class: "closure-face", title: words },
    icon(SIGNS[closure.kind] ?? "lock"), el("span", { class: "truncate", text: words }));
}

/** The agenda's line of it. */
export function closureItem(closure, zone) {
  return el("p", { class: `agenda-item is-closure is-${closure.kind}` }, closureFace(closure, zone));
}
