// Closed time behind the bars: maintenance, blackout, hours of a course.
// Each kind has its pattern, sign and word, so that colour is never needed to tell them apart.
import { el } from "../../dom.js";
import { icon } from "../../icons.js";
import { clockOf, dateClock } from "../words.js";
import { toWall } from "../zone.js";
import { gettext } from "../../words.js";

const WORDS = { maintenance: gettext("Maintenance"), blackout: gettext("Closed"), teaching: gettext("Course") };
const SIGNS = { maintenance: "maintenance", blackout: "lock", teaching: "users" };

/** "Maintenance 14:00–18:00: new fans", "Course ml-101 ...", with days where they differ. */
export function closureWords(closure, zone) {
  const [start, end] = [closure.start, closure.end].map((at) => toWall(at, zone));
  const times = start.slice(0, 10) === end.slice(0, 10)
    ? `${clockOf(start)}–${clockOf(end)}` : `${dateClock(start)} – ${dateClock(end)}`;
  const kind = WORDS[closure.kind] ?? gettext("Closed");
  const whose = closure.kind === "teaching" && closure.account ? ` ${closure.account}` : "";
  const open = closure.open ? gettext(", open to you") : "";
  return `${kind}${whose} ${times}${open}${closure.reason ? `: ${closure.reason}` : ""}`;
}

/** The timeline's background events, only for rows that are drawn. */
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

/** The agenda's line for a closed time. */
export function closureItem(closure, zone) {
  return el("p", { class: `agenda-item is-closure is-${closure.kind}` }, closureFace(closure, zone));
}
