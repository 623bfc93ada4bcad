// The head line: how many Gpus are in which state (each a filter), and how old it is.

import { el, setAttr, setClass, setText } from "../dom.js";
import { icon } from "../icons.js";
import { drawSlurmAge } from "./slurm.js";
import { BUCKETS } from "../telemetry/states.js";
import { gettext } from "../words.js";

const LATE_SECONDS = 3;
const BANNER_SECONDS = 6; // one or two lost frames show no banner

/** Shows in the page's banner that the figures are old. null hides the banner. */
export function tellLate(seconds) {
  const detail = { path: "frames", word: seconds === null ? "open" : "late", seconds };
  document.dispatchEvent(new CustomEvent("live:state", { detail }));
}

export class HeadLine {
  /** `slurm` shows the age of what Slurm said. It is hidden on a board without its GPUs. */
  constructor(root, live, slurm, filters) {
    Object.assign(this, { root, live, slurm, filters });
    this.socket = "connecting";
    this.chips = new Map(BUCKETS.map((bucket) => {
      const count = el("b", { class: "count-figure" });
      const button = el("button", {
        type: "button", class: `count state-${bucket.look}`, "aria-pressed": "false",
        on: { click: () => filters.set({ state: filters.get("state") === bucket.key ? "" : bucket.key }) },
      }, icon(bucket.look), count, el("span", { text: bucket.words }));
      return [bucket.key, { bucket, button, count }];
    }));
    root.replaceChildren(...[...this.chips.values()].map(({ button }) => button));
  }

  paint(cells) {
    const counts = {};
    for (const { state } of cells) counts[state.bucket] = (counts[state.bucket] ?? 0) + 1;
    const chosen = this.filters.get("state");
    for (const [key, { bucket, button, count }] of this.chips) {
      const n = counts[key] ?? 0;
      button.hidden = !n && !bucket.always && chosen !== key;
      setText(count, n);
      setAttr(button, "aria-pressed", chosen === key);
      setClass(button, `count state-${bucket.look}${n ? "" : " is-none"}`);
    }
  }

  /** "live, 0.8 s". Called each second, also without a new frame. */
  paintAge(board) {
    const silence = board.silenceSeconds();
    drawSlurmAge(this.slurm, board);
    const late = this.socket === "open" && silence !== null && silence > LATE_SECONDS;
    tellLate(late && silence > BANNER_SECONDS ? silence : null);
    document.body.classList.toggle("is-late", late || (this.socket !== "open" && silence !== null && silence > LATE_SECONDS));
    if (this.socket === "waiting" || this.socket === "refused") {
      setClass(this.live, "live live-off");
      setText(this.live, silence === null ? gettext("offline") : gettext("offline, data is {seconds} s old", { seconds: Math.round(silence) }));
    } else if (silence === null) {
      setClass(this.live, "live");
      setText(this.live, gettext("connecting"));
    } else if (late || this.socket !== "open") {
      setClass(this.live, "live live-late");
      setText(this.live, gettext("late, {seconds} s", { seconds: Math.round(silence) }));
    } else {
      const age = board.ageSeconds();
      setClass(this.live, age === null ? "live live-late" : "live live-ok");
      setText(this.live, age === null ? gettext("no fresh reading") : gettext("live, {seconds} s", { seconds: age.toFixed(1) }));
    }
  }
}
