// Energy and use of the running booking of a Gpu, for its holder and the operator.

import { api } from "../api.js";
import { el, setText } from "../dom.js";
import { UNKNOWN, energy, pct } from "../format.js";
import { gettext } from "../words.js";

const EVERY_MS = 60_000;

export class BookingUsage {
  /** `list` is a <dl class="facts">. It stays hidden without facts. */
  constructor(list, seesAll) {
    Object.assign(this, { list, seesAll, reservation: null, askedAt: -Infinity });
    this.values = [gettext("Energy of this booking"), gettext("Mean utilization"), gettext("Idle")].map((label) => {
      const value = el("dd", { text: UNKNOWN });
      list.append(el("div", {}, el("dt", { text: label }), value));
      return value;
    });
  }

  paint(holder) {
    const told = holder?.until && (holder.mine || this.seesAll) ? holder.reservation : null;
    if (told !== this.reservation) {
      this.reservation = told;
      this.askedAt = -Infinity;
      this.list.hidden = true;
    }
    if (told === null || document.hidden || performance.now() - this.askedAt < EVERY_MS) return;
    this.askedAt = performance.now();
    this.ask(told);
  }

  async ask(reservation) {
    // Without an answer the last figures stay. The next minute asks again.
    const answer = await api("GET", `/reservations/${reservation}/usage`).catch(() => null);
    if (!answer?.usage || reservation !== this.reservation) return;
    const { energy_kwh: kwh, util_mean_pct: mean, idle_ratio: idle } = answer.usage;
    [energy(kwh), pct(mean), pct(idle === null ? null : idle * 100)].forEach((text, i) => setText(this.values[i], text));
    this.list.hidden = false;
  }
}
