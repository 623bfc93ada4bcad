// Words about the GPUs that Slurm gives out. Nothing measures them: they have a holder and an end.

import { optionalData, setAttr, setClass, setText } from "../dom.js";
import { clock } from "../time.js";
import { gettext } from "../words.js";

/** Slurm is asked each 15 s. Ages in frames end at "25.4 s or more". */
const KNOWN_AGE_SECONDS = 25;

/** Whether GPUs of Slurm are booked in the calendar. */
export const slurmBooks = optionalData("slurm-books") ?? false;

/** Returns true if Slurm gives out a GPU or the GPUs of a node. */
export const isSlurm = (info) => info?.engine === "slurm";

/** "Slurm: 12 s ago", "Slurm has not answered since 10:12". "" if the board has no GPU of Slurm. */
export function slurmAgeWords(board) {
  const age = board.slurmAgeSeconds();
  if (age === null) return "";
  const [silent] = board.silent;
  if (silent) return gettext("Slurm has not answered since {time}", { time: clock(silent.since) });
  if (age > KNOWN_AGE_SECONDS) return gettext("Slurm: more than {seconds} s ago", { seconds: KNOWN_AGE_SECONDS });
  return gettext("Slurm: {seconds} s ago", { seconds: Math.round(age) });
}

/** Draws the age of Slurm's facts into an element with the class "live". */
export function drawSlurmAge(root, board) {
  const words = slurmAgeWords(board);
  const late = board.silent.length > 0 || board.slurmAgeSeconds() > KNOWN_AGE_SECONDS;
  root.hidden = !words;
  setText(root, words);
  setClass(root, late ? "live live-late" : "live live-ok");
  setAttr(root, "title", words ? gettext("Age of what Slurm said about its nodes") : null);
}

/** "until 14:00", "without a time limit", "free, not booked", "free until 18:00". */
export function slurmUntilWords({ holder, state }) {
  const coming = holder?.next ? clock(holder.next.start) : null;
  if (holder?.slurm?.held) {
    const end = holder.until ? gettext("until {time}", { time: clock(holder.until) }) : gettext("without a time limit");
    return coming ? gettext("{end}, reserved from {time}", { end, time: coming }) : end;
  }
  if (state.key !== "free") return "";
  if (coming) return gettext("free until {time}", { time: coming });
  return slurmBooks ? gettext("free, not booked") : gettext("free for jobs of Slurm");
}

/** The job that has it, as a process of the portal's nodes. [] if it was not started from the portal. */
export function slurmProcesses({ holder, state }) {
  const job = holder?.slurm?.portal_job;
  return job && state.key === "busy" ? [{ job, user: holder.user, mine: holder.mine, command: "", memory_bytes: null, pid: null }] : [];
}

/** "Slurm job 12", "booked, nothing runs yet", "reserved in Slurm: course-7", "closed in Slurm: new fans". */
function heldWords({ holder }) {
  const { job, portal_job, reservation } = holder?.slurm ?? {};
  if (portal_job) return gettext("job #{job}", { job: portal_job });
  if (job) return gettext("Slurm job {job}", { job });
  if (holder?.reservation) return gettext("booked, nothing runs yet");
  return reservation ? gettext("reserved in Slurm: {name}", { name: reservation }) : "";
}

/** The one line that explains the state of a GPU of Slurm. */
export function slurmNoteWords({ holder, state, info }) {
  const { reason } = holder?.slurm ?? {};
  const holds = heldWords({ holder });
  switch (state.key) {
    case "lost": {
      const why = info.present === false ? gettext("Slurm no longer lists this GPU")
        : reason ? gettext("its node does not work: {reason}", { reason }) : gettext("Slurm does not reach its node");
      return [why, holds].filter(Boolean).join("; ");
    }
    case "maintenance": return reason ? gettext("closed in Slurm: {reason}", { reason }) : gettext("closed in Slurm");
    case "stale": return holds && gettext("{holds}, by the last answer of Slurm", { holds });
    case "unknown": return gettext("Slurm said nothing about it yet");
    case "busy": return holds || gettext("a job that Slurm does not show to the portal");
    default: return holds;
  }
}
