// Reservations as bars of the timeline: their text and CSS classes.
// The classes are the legend's: kind, mine, past, frozen (static/css/calendar.css).
import { el } from "../../dom.js";
import { duration } from "../../format.js";
import { icon } from "../../icons.js";
import { serverNow } from "../../time.js";
import { closureFace } from "./closures.js";
import { ghostFace } from "./ghosts.js";
import { clockOf, gpuWords, span } from "../words.js";
import { toWall, wallOf, wallSeconds } from "../zone.js";
import { gettext } from "../../words.js";
import { kindWord, stateWord } from "../../state_words.js";

/** Returns the holder's name, if the reader is allowed to know it. */
export function owner(reservation) {
  if (reservation.mine) return gettext("You");
  return reservation.user_name || reservation.user || reservation.account || gettext("Booked");
}

export const isFrozen = (reservation) => Boolean(reservation.frozen) && reservation.kind === "flex";

/** "firm", "flex", "flex, now safe", "flex, staying on", "a job in a gap". */
export function kindWords(reservation) {
  if (reservation.gap) return gettext("a job in a gap");
  if (reservation.overstay) return gettext("{kind}, staying on", { kind: kindWord(reservation.kind) });
  return isFrozen(reservation) ? gettext("{kind}, now safe", { kind: kindWord(reservation.kind) }) : kindWord(reservation.kind);
}

/** The sign of a bar, beside its colour and pattern, or null. */
export function barSign(reservation) {
  if (reservation.overstay) return "clock";
  if (isFrozen(reservation)) return "lock";
  return reservation.series ? "refresh" : null;
}

const degrees = (hue) => (((hue ?? 210) % 360) + 360) % 360;

/** The class of calendar.css that carries a group's colour, in steps of ten degrees. */
export const hueClass = (hue) => `hue-${Math.floor(degrees(hue) / 10)}`;

/** The classes of one Reservation's bar, the same on every screen. */
export function barClasses(reservation, nowMs = serverNow()) {
  const classes = [hueClass(reservation.hue), `is-${reservation.kind}`];
  if (reservation.mine) classes.push("is-mine");
  if (reservation.shared) classes.push("is-shared");
  if (isFrozen(reservation)) classes.push("is-frozen");
  if (Date.parse(reservation.end) <= nowMs) classes.push("is-past");
  if (reservation.state === "active") classes.push("is-active");
  if (reservation.overstay) classes.push("is-overstay");
  if (reservation.co_users?.length) classes.push("is-shared");
  return classes;
}

/** Text for a screen reader, in addition to the text on the bar. */
export function barSentence(reservation, gpus, zone, nowWall) {
  const when = span(toWall(reservation.start, zone), toWall(reservation.end, zone), nowWall);
  const group = reservation.account === owner(reservation) ? "" : reservation.account;
  const kind = kindWords(reservation);
  const own = reservation.mine && reservation.purpose ? gettext("yours") : "";
  const by = reservation.shared ? gettext("shared with you") : own;
  return `: ${[by, group, gpuWords(gpus), when, kind, stateWord(reservation.state)].filter(Boolean).join(", ")}`;
}

/** The timeline's event for a Reservation. */
export function barEvent(reservation, zone) {
  const editable = Boolean(reservation.editable && reservation.mine);
  return {
    id: `r${reservation.id}`,
    resourceIds: reservation.gpu_ids.map(String),
    start: `${toWall(reservation.start, zone)}:00`,
    end: `${toWall(reservation.end, zone)}:00`,
    classNames: ["bar-event", ...barClasses(reservation)],
    editable,
    startEditable: editable && reservation.state === "confirmed",
    extendedProps: { reservation },
  };
}

/** The timeline's event for the draft, or null if it is closed or incomplete. */
export function draftEvent(draft, store, view) {
  if (!draft.open || draft.missing()) return null;
  const [start, end] = [draft.startAt(), draft.endAt()];
  const free = draft.gpuIds.every((id) => store.isFree(store.gpu(id) ?? {}, start, end, draft.editing?.id));
  // In the flat rows of several days it lies behind other bars. Otherwise the row would
  // double its height, and all rows below would jump.
  const ground = view !== "day" && (!free || draft.editing) ? { display: "background" } : {};
  return {
    ...ground,
    id: "draft", resourceIds: draft.gpuIds.map(String), start: `${draft.start}:00`,
    end: `${draft.end}:00`, classNames: ["bar-event", "is-draft"], editable: true,
    extendedProps: { draft: true },
  };
}

/** The striped background of rows that cannot be booked, or null. */
export function closedEvent(gpus, start, end) {
  const closed = gpus.filter((gpu) => !gpu.bookable).map((gpu) => String(gpu.id));
  return closed.length ? {
    id: "closed", resourceIds: closed, start: `${start}:00`, end: `${end}:00`,
    display: "background", classNames: ["is-closed"], extendedProps: { ground: true },
  } : null;
}

/** The dimmed background of the past over all rows, or null if no past is in view. */
export function pastEvent(rowIds, start, end, nowWall) {
  const until = nowWall < end ? nowWall : end;
  return until > start ? {
    id: "past", resourceIds: rowIds, start: `${start}:00`, end: `${until}:00`,
    display: "background", classNames: nowWall < end ? ["is-gone", "is-now"] : ["is-gone"], extendedProps: { ground: true },
  } : null;
}

/** "Draft", or while time is being chosen "12:00–16:00, 4 h". */
function draftWords(event) {
  if (event.extendedProps.draft && event.display !== "preview") return gettext("Draft");
  const [start, end] = [wallOf(event.start), wallOf(event.end)];
  return `${clockOf(start)}–${clockOf(end)}, ${duration(wallSeconds(start, end))}`;
}

/** The content of a bar. */
export function barContent(event, { zone, store, nowWall }) {
  const { reservation, ground, closure, ghost } = event.extendedProps;
  if (ghost) return { domNodes: [ghostFace(ghost, zone)] };
  if (closure) return { domNodes: [closureFace(closure, zone)] };
  if (ground) return { domNodes: [] };
  if (!reservation) return { domNodes: [el("span", { class: "bar-face", text: draftWords(event) })] };
  const gpus = reservation.gpu_ids.map((id) => store.gpu(id)).filter(Boolean);
  // A bar that is being dragged shows its new time.
  const dragged = event.display === "preview";
  const [from, until] = dragged ? [event.start, event.end].map((at) => clockOf(wallOf(at)))
    : [reservation.start, reservation.end].map((at) => clockOf(toWall(at, zone)));
  const name = (reservation.mine && reservation.purpose) || owner(reservation);
  const sign = barSign(reservation);
  return { domNodes: [el("button", {
    type: "button", class: "bar-face", "data-reservation": reservation.id, tabindex: "-1",
  }, el("span", { class: "bar-label" },
    sign ? icon(sign) : null,
    el("span", { class: "bar-name", text: name }),
    el("span", { class: "bar-time", text: `${from}–${until}` })),
  el("span", { class: "visually-hidden", text: barSentence(reservation, gpus, zone, nowWall()) }))] };
}
