// Planned places of the reader's waiting requests: ghosts behind the bars. They hold no
// GPU: free time under a ghost can be booked (by others' flex only if no start is
// planned), so they are part of the background and ignore the pointer.
import { el } from "../../dom.js";
import { icon } from "../../icons.js";
import { clockOf } from "../words.js";
import { toWall } from "../zone.js";
import { gettext } from "../../words.js";

/** "You wait: planned 14:00–18:00" */
export function ghostWords(ghost, zone) {
  const [from, until] = [ghost.start, ghost.end].map((at) => clockOf(toWall(at, zone)));
  return ghost.planned
    ? gettext("You wait: planned {from}–{until}", { from, until }) : gettext("You wait: about {from}–{until}", { from, until });
}

/** The timeline's background events, only for rows that are drawn. */
export function ghostEvents(ghosts, rowIds, zone) {
  return ghosts.map((ghost) => ({
    id: `w${ghost.id}`,
    resourceIds: ghost.gpu_ids.map(String).filter((id) => rowIds.has(id)),
    start: `${toWall(ghost.start, zone)}:00`, end: `${toWall(ghost.end, zone)}:00`,
    display: "background", classNames: ["is-ghost", ghost.planned ? "is-planned" : "is-guess"],
    extendedProps: { ground: true, ghost },
  })).filter((event) => event.resourceIds.length);
}

export function ghostFace(ghost, zone) {
  const words = ghostWords(ghost, zone);
  return el("span", { class: "closure-face ghost-face", title: words },
    icon("clock"), el("span", { class: "truncate", text: words }));
}

/** The agenda's lines of one GPU and day: links to the waitlist. */
export function ghostItems(ghosts, gpu, date, zone) {
  return ghosts.filter((ghost) => ghost.gpu_ids.includes(gpu.id)
    && toWall(ghost.start, zone).slice(0, 10) <= date && toWall(ghost.end, zone) > `${date}T00:00`)
    .map((ghost) => el("a", {
      class: `agenda-item is-ghost ${ghost.planned ? "is-planned" : "is-guess"}`, href: "/waiting/",
    }, ghostFace(ghost, zone)));
}

/** Returns the address of the waitlist with its form filled. Empty fields are left out. */
export function waitAddress(fields) {
  const query = new URLSearchParams(Object.entries(fields).filter(([, value]) => value));
  return `/waiting/?${query}#wait-form`;
}
