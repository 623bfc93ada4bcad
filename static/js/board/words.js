// Sentences of a card about its Gpu, see docs/design/interface.md#card-sentences.

import { optionalData } from "../dom.js";
import { energy } from "../format.js";
import { isSilent, throttleWords } from "../telemetry/states.js";
import { clock, relative } from "../time.js";
import { gettext, ngettext } from "../words.js";
import { isSlurm, slurmBooks, slurmNoteWords, slurmUntilWords } from "./slurm.js";

const who = (name, account) => [name, account].filter(Boolean).join(", ") || gettext("another person");

/** Reasons why nodes take no new bookings: {node: reason}. */
const drains = optionalData("drains") ?? {};
/** Reasons why single GPUs take no new bookings: {id: reason}. */
const gpuDrains = optionalData("gpu-drains") ?? {};

/** "no new bookings: new fans". */
export const drainWords = (node) => closedWords(drains[node]);

const closedWords = (reason) => (reason ? gettext("no new bookings: {reason}", { reason }) : gettext("no new bookings"));

const LITTLE_BYTES = 2 ** 30; // an idle card uses up to this much for its driver

/** Returns true if a user holds it now. */
export const isHeld = (cell) => Boolean(cell.holder?.until || cell.holder?.slurm?.held);

/** "Alice, vision" or "". */
export function whoWords(cell) {
  if (!isHeld(cell)) return "";
  const words = who(cell.holder.mine ? gettext("You") : cell.holder.user, cell.holder.account);
  return cell.holder.shared ? gettext("{who}, shared with you", { who: words }) : words;
}

/** "Alice, vision until 14:00" or "". */
export function holderWords(cell) {
  if (!isHeld(cell)) return "";
  if (!cell.holder.until) return whoWords(cell);
  return gettext("{who} until {time}", { who: whoWords(cell), time: clock(cell.holder.until) });
}

/** "until 14:00, then free until 18:00", "free until 18:00", "free, not booked". */
export function untilWords(cell) {
  if (isSlurm(cell.info)) return slurmUntilWords(cell);
  return isHeld(cell) ? gettext("until {time}, {next}", { time: clock(cell.holder.until), next: nextWords(cell) }) : nextWords(cell);
}

/** "1.24 kWh so far": energy of the running booking. "" if it is not known. */
export function energyWords(cell) {
  const figure = energyFigure(cell);
  return figure && gettext("{energy} so far", { energy: figure });
}

/** "1.24 kWh": energy of the running booking, without words. */
export function energyFigure({ holder, spent }) {
  return spent && spent.reservation === holder?.reservation ? energy(spent.kwh) : "";
}

/** "then Bo", "then free until 18:00", "free from 14:00". */
export function nextWords(cell) {
  const next = cell.holder?.next;
  const freeFrom = cell.holder?.free_from;
  if (isSlurm(cell.info)) return isHeld(cell) ? "" : slurmUntilWords(cell);
  if (!isHeld(cell)) {
    if (cell.state.key !== "free" && cell.state.key !== "squatter") return "";
    return next ? gettext("free until {time}", { time: clock(next.start) }) : gettext("free, not booked");
  }
  if (next && next.start === cell.holder.until) return gettext("then {who}", { who: next.mine ? gettext("you") : next.user ?? next.account ?? gettext("booked again") });
  if (next) return gettext("then free until {time}", { time: clock(next.start) });
  return freeFrom && freeFrom !== cell.holder.until ? gettext("free from {time}", { time: clock(freeFrom) }) : gettext("then free");
}

/** Returns the owner of a process, if the reader is allowed to know. */
export const ownerOf = (process) => process.user ?? (process.mine ? gettext("you") : gettext("another person"));

/** Returns the users with a process there, without repeats. */
export function runners(cell) {
  return [...new Set((cell.detail?.processes ?? []).map(ownerOf))];
}

/** The one line that explains an unusual state; "" when all is well. */
export function noteWords(cell) {
  if (isSlurm(cell.info)) return slurmNoteWords(cell);
  const running = runners(cell).join(", ");
  const seen = cell.seenAt === null ? gettext("never seen") : gettext("last seen {time}", { time: relative(new Date(cell.seenAt)) });
  switch (cell.state.key) {
    case "stale": return seen;
    // The node still sends samples, so its newest sample does not show that this Gpu works.
    case "lost": return gettext("the driver does not answer for this GPU");
    case "intruder": return gettext("booked: {who}; running: {running}", { who: who(cell.holder?.mine ? gettext("you") : cell.holder?.user, null), running: running || gettext("another person") });
    case "squatter": return gettext("not booked; running: {running}", { running: running || gettext("unknown") });
    case "idle": return cell.row?.memoryUsedBytes > LITTLE_BYTES ? gettext("memory in use, but no work runs") : gettext("nothing runs");
    case "reserved": return gettext("booked, nothing runs yet");
    case "maintenance": return gettext("cannot be booked");
    case "foreign": return gettext("another system manages this GPU");
    case "mig": return gettext("split into parts that are booked one by one");
    default: return [cell.info.draining ? closedWords(gpuDrains[cell.id] ?? drains[cell.info.node]) : "", hardwareWords(cell), throttleWords(cell.detail?.throttle)].filter(Boolean).join("; ");
  }
}

/** "Xid 79 5 min ago, 2 memory errors" or "": errors that the hardware reports. */
export function hardwareWords({ info, detail }) {
  const words = [];
  const xid = info.last_xid;
  if (xid) words.push(gettext("Xid {code} {time}", { code: xid.code, time: relative(xid.at) }));
  const errors = detail?.ecc_uncorrected;
  if (errors) words.push(ngettext("{n} uncorrected memory error", "{n} uncorrected memory errors", errors));
  if (detail?.remap_failure) words.push(gettext("row remapping failed"));
  else if (detail?.remap_pending || detail?.retired_pages_pending) words.push(gettext("needs a reset for bad memory"));
  return words.join(", ");
}

/** Returns the reason why a figure is a dash. */
export function missingWords(cell) {
  if (cell.state.key === "mig") return gettext("see the parts of this split GPU");
  if (isSlurm(cell.info)) return gettext("Slurm does not report it");
  if (isSilent(cell.state)) return noteWords(cell) || gettext("no reading");
  return gettext("this GPU does not report it");
}

/** Returns true if the reader can book it. */
export const isBookable = (cell) => !["lost", "maintenance", "mig", "foreign"].includes(cell.state.key) && cell.info.present !== false && !cell.info.draining && (slurmBooks || !isSlurm(cell.info));
