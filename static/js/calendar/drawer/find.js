// "Find a slot": N GPUs of at least X GiB for H hours, between two times.
import { api } from "../../api.js";
import { el } from "../../dom.js";
import { gib } from "../../format.js";
import { icon } from "../../icons.js";
import "../../fields/when.js";
import { foreignNode } from "../timeline/foreign.js";
import { waitAddress } from "../timeline/ghosts.js";
import { problemWords } from "./problem.js";
import { gpuWords, gpus as gpuCount, moment, shortClass, span } from "../words.js";
import { addWall, fromWall, toWall, wallSeconds } from "../zone.js";
import { gettext, ngettext } from "../../words.js";

const WEEK_SECONDS = 7 * 86400;

export class Find {
  /** membership(): the membership that pays. take(slot): called with the chosen slot. */
  constructor(node, { store, config, nowWall, membership, take }) {
    Object.assign(this, { node, store, config, nowWall, membership, take });
    this.form = node.querySelector("form");
    this.results = node.querySelector("#slots");
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    this.form.elements.earliest.value = nowWall();
    this.form.elements.latest.value = addWall(nowWall(), WEEK_SECONDS);
    store.addEventListener("loaded", () => this.#choices());
  }

  /** Offer the classes and sizes that exist. */
  #choices() {
    const { gpu_class: classes, min_gib: sizes } = this.form.elements;
    if (classes.options.length > 1) return;
    for (const name of new Set(this.store.gpus.map((gpu) => gpu.gpu_class))) {
      classes.append(el("option", { value: name, text: shortClass(name) }));
    }
    const bytes = [...new Set(this.store.gpus.map((gpu) => gpu.memory_total_bytes).filter(Boolean))].sort((a, b) => a - b);
    for (const size of bytes) {
      sizes.append(el("option", { value: Math.floor(size / 2 ** 30), text: gettext("at least {size}", { size: gib(size) }) }));
    }
  }

  async ask() {
    const { count, hours, min_gib: size, gpu_class: kind, earliest, latest } = this.form.elements;
    if (!this.form.reportValidity()) return;
    const query = new URLSearchParams({ count: count.value, hours: hours.value, min_memory_gib: size.value || "0" });
    if (this.membership()) query.set("membership", this.membership());
    if (kind.value) query.set("gpu_class", kind.value);
    if (earliest.value) query.set("earliest", fromWall(earliest.value, this.config.zone).toISOString());
    if (latest.value) query.set("latest", fromWall(latest.value, this.config.zone).toISOString());
    this.results.setAttribute("aria-busy", "true");
    this.results.replaceChildren(...[0, 1, 2].map(() => el("div", { class: "skeleton slot-skeleton" })));
    try {
      const { slots, full, refusal } = await api("GET", `/slots?${query}`);
      this.#show(slots, refusal);
      if (full) {
        this.results.prepend(el("p", { class: "notice notice-warn" }, icon("info"), el("span", {},
          gettext("You have {live} of {most} bookings. Only slots that prolong one of them are shown. ", { live: full.live, most: full.most }),
          el("a", { href: "/mine/", text: gettext("My reservations") }))));
      }
    } catch (error) {
      if (error.name !== "Problem") throw error;
      this.#say("alert", problemWords(error));
    }
    this.results.removeAttribute("aria-busy");
  }

  #say(name, text) {
    this.results.replaceChildren(el("p", { class: "notice notice-warn" }, icon(name), el("span", { text })));
  }

  #show(slots, refusal) {
    if (!slots.length) {
      const { count, hours } = this.form.elements;
      this.#say("info", refusal?.detail
        ?? gettext("{count} GPUs are never free together for {hours} h in that time. Try fewer GPUs, fewer hours or a later end.", { count: count.value, hours: hours.value }));
      this.results.append(this.#waitLink());
      return;
    }
    this.results.replaceChildren(...slots.map((slot) => this.#card(slot)), this.#waitLink());
  }

  /** Link to the waitlist with the search filled in. The waitlist books it when it comes free. */
  #waitLink() {
    const { count, hours, min_gib: size, gpu_class: kind, earliest, latest } = this.form.elements;
    return el("a", { class: "btn btn-s", href: waitAddress({
      count: count.value, hours: hours.value, min_gib: size.value, gpu_class: kind.value,
      earliest: earliest.value, latest: latest.value, membership: this.membership(),
    }) }, icon("clock"), gettext("Join the waitlist instead"));
  }

  #card(slot) {
    const [start, end] = [slot.start, slot.end].map((at) => toWall(at, this.config.zone));
    const gpus = slot.gpu_ids.map((id) => this.store.gpu(id)).filter(Boolean);
    const now = this.nowWall();
    const soon = wallSeconds(now, start) <= 60;
    const [first, last] = soon ? [gettext("Now"), moment(end, now)] : [null, null];
    const title = first ? `${first} – ${last}` : span(start, end, now);
    const kinds = [...new Set(gpus.map((gpu) => shortClass(gpu.gpu_class)))].join(", ");
    return el("button", {
      type: "button", class: `slot-card is-${slot.kind}`,
      on: { click: () => this.take({ gpuIds: slot.gpu_ids, start, end }) },
    }, el("strong", { class: "slot-when", text: title }),
    el("span", { class: "slot-where", text: `${gpuWords(gpus)} (${gpuCount(gpus.length)}, ${kinds})` }),
    el("span", { class: "slot-kind" }, el("span", { class: "verdict-swatch" }), this.#kind(slot, start, now)),
    slot.foreign_gpu_ids?.length ? foreignNode(slot.foreign_gpu_ids, this.store) : null);
  }

  #kind(slot, start, now) {
    const takes = slot.displaces ? ngettext(", takes over {n} flex booking", ", takes over {n} flex bookings", slot.displaces) : "";
    if (slot.kind === "firm") return gettext("firm") + takes;
    const until = addWall(start, -this.config.freeze_seconds);
    return (wallSeconds(now, until) > 0 ? gettext("flex until {time}", { time: moment(until, now) }) : gettext("flex, safe at once")) + takes;
  }
}
