// The background of the timeline: closed rows, closed time,
// the past, and the draft in front.
import { closedEvent, draftEvent, pastEvent } from "./bars.js";
import { closureEvents } from "./closures.js";
import { ghostEvents } from "./ghosts.js";
import { rangeOf } from "../zone.js";

/** part: {store, draft, zone, view, date, nowWall}. gpus: GPUs whose rows are drawn. */
export function groundEvents({ store, draft, zone, view, date, nowWall }, gpus, groupIds = []) {
  const rowIds = gpus.map((gpu) => String(gpu.id));
  const range = rangeOf(view, date, nowWall());
  return [
    draftEvent(draft, store, view), closedEvent(gpus, ...range),
    pastEvent([...rowIds, ...groupIds], ...range, nowWall()),
    ...closureEvents(store.closures, new Set(rowIds), zone),
    ...ghostEvents(store.waiting, new Set(rowIds), zone),
  ].filter(Boolean);
}
