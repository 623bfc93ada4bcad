// The ring of time left until the reservation ends.

import { setText } from "../dom.js";
import { duration } from "../format.js";
import { clock, serverNow } from "../time.js";
import { gettext } from "../words.js";

export class TimeLeft {
  constructor({ fill, figure, words }) {
    Object.assign(this, { fill, figure, words });
    setInterval(() => this.draw(), 1000);
  }

  show(job) { this.job = job; this.draw(); }

  draw() {
    if (!this.job) return;
    const { state, started_at: startedAt, ended_at: endedAt, reservation } = this.job;
    const start = Date.parse(reservation.start);
    const end = Date.parse(reservation.end);
    if (endedAt) {
      const ran = startedAt ? (Date.parse(endedAt) - Date.parse(startedAt)) / 1000 : 0;
      setText(this.figure, duration(Math.max(0, ran)));
      setText(this.words, startedAt ? gettext("ran") : gettext("never started"));
      this.part(0);
    } else if (state === "queued" && start > serverNow()) {
      setText(this.figure, duration((start - serverNow()) / 1000));
      setText(this.words, gettext("until the start, {time}", { time: clock(reservation.start) }));
      this.part(1);
    } else {
      const left = Math.max(0, (end - serverNow()) / 1000);
      setText(this.figure, duration(left));
      setText(this.words, gettext("left, until {time}", { time: clock(reservation.end) }));
      this.part(left / ((end - start) / 1000));
    }
  }

  part(ratio) {
    const clamped = Math.max(0, Math.min(1, ratio));
    this.fill.setAttribute("stroke-dasharray", `${100 * clamped} 100`);
  }
}
