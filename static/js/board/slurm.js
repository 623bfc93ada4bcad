// Words about the GPUs that Slurm gives out. Nothing measures them: they have a holder and an end.

import { setAttr, setClass, setText } from "../dom.js";
import { clock } from "../time.js";
import { gettext } from "../words.js";

/** Slurm is asked each 15 s. Ages in frames end at "25.4 s or more". */
const KNOWN_AGE_SECONDS = 25;

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

/** "until 14:00", "without a time limit", "free for jobs of Slurm", "free until 18:00". */
export function slurmUntilWords({ holder, state }) {
  const coming = holder?.next ? clock(holder.next.start) : null;
  if (holder?.slurm?.held) {
    const end = holder.until ? gettext("until {time}", { time: clock(holder.until) }) : gettext("without a time limit");
    return coming ? gettext("{end}, reserved from {time}", { end, time: coming }) : end;
  }
  if (state.key !== "free") return "";
  return coming ? gettext("free until {time}", { time: coming }) : gettext("free for jobs of Slurm");
}

/** "Slurm job 12", "reserved in Slurm: course-7", "closed in Slurm: new fans". */
export function slurmNoteWords({ holder, state, info }) {
  const { job, reservation, reason } = holder?.slurm ?? {};
  const holds = job ? gettext("Slurm job {job}", { job }) : reservation ? gettext("reserved in Slurm: {name}", { name: reservation }) : "";
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
