// What the portal would say to the draft, said before any button is pressed.
import { api } from "../api.js";
import { el } from "../dom.js";
import { duration } from "../format.js";
import { icon } from "../icons.js";
import { figure, gpuWords, moment, ordinal, span } from "./words.js";
import { toWall, wallSeconds } from "./zone.js";

const WAIT_MS = 200;

export class Verdict {
  constructor(node, { draft, store, config, nowWall, take }) {
    Object.assign(this, { node, draft, store, config, nowWall, take });
    this.answer = null;
    this.asked = "";
    draft.addEventListener("change", () => this.#soon());
  }

  #soon() {
    clearTimeout(this.timer);
    if (!this.draft.open) { this.#forget(); return; }
    const missing = this.draft.missing();
    if (missing) {
      this.#forget();
      this.#show(el("p", { class: "hint", text: missing }));
      return;
    }
    const body = this.body();
    const print = JSON.stringify({ ...body, purpose: "" });
    if (print === this.asked) return;
    this.node.setAttribute("aria-busy", "true");
    this.timer = setTimeout(() => this.ask(body, print), WAIT_MS);
  }

  #forget() {
    this.abort?.abort();
    this.asked = "";
    this.answer = null;
    this.node.removeAttribute("aria-busy");
    this.node.replaceChildren();
  }

  body() {
    const { editing } = this.draft;
    return { ...this.draft.body(), ...(editing ? { ignoring: editing.id } : {}) };
  }

  /** Ask now; resolves to the answer, or null when a newer question came between. */
  async ask(body = this.body(), print = JSON.stringify({ ...body, purpose: "" })) {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = new AbortController();
    this.asked = print;
    try {
      this.answer = await api("POST", "/reservations/preview", body, { signal: this.abort.signal });
      this.#show(...(this.answer.ok ? this.#yes(this.answer) : this.#no(this.answer.refusal ?? {}, this.answer.next_slot)));
    } catch (error) {
      if (error.name === "AbortError") return null;
      this.asked = "";
      this.refused(error);
    }
    this.node.removeAttribute("aria-busy");
    return this.answer;
  }

  /** Show a refusal that came as a Problem: from booking itself, or from asking. */
  refused(error) {
    if (error.name !== "Problem") throw error;
    this.answer = { ok: false };
    const fields = Object.values(error.fields).flat();
    this.#show(...this.#no({ detail: [error.message, ...fields].join(" ") }, error.nextSlot));
  }

  #show(...nodes) {
    this.node.replaceChildren(...nodes.filter(Boolean));
    this.node.dispatchEvent(new CustomEvent("shown", { bubbles: true }));
  }

  #yes(answer) {
    const firm = answer.kind === "firm";
    const [title, text] = firm
      ? ["Firm", "Nobody can take it from you."] : ["Flex", this.#flexWords(answer)];
    const facts = [["Cost, weighted", `${figure(answer.cost_gpu_hours)} GPU-h`]];
    if (answer.quota_left_gpu_hours !== null && answer.quota_left_gpu_hours !== undefined) {
      facts.push(["Firm quota left then", `${figure(answer.quota_left_gpu_hours)} GPU-h`]);
    }
    if (answer.displaces?.length) {
      facts.push(["Displaces", this.#displaced(answer.displaces)]);
    }
    if (answer.rank_before) {
      const moved = answer.rank_before === answer.rank_after
        ? `stays ${ordinal(answer.rank_after)} of ${answer.of}`
        : `${ordinal(answer.rank_before)} → ${ordinal(answer.rank_after)} of ${answer.of}`;
      facts.push(["Your rank", moved]);
    }
    return [
      el("div", { class: `verdict-kind is-${answer.kind}` }, el("span", { class: "verdict-swatch" }),
        el("p", {}, el("strong", { text: `${title}. ` }), text)),
      el("dl", { class: "verdict-facts" }, ...facts.map(([name, value]) =>
        el("div", {}, el("dt", { text: name }), el("dd", { text: value })))),
      answer.why_not_firm ? el("details", { class: "why-flex" }, el("summary", { text: "Why not firm" }), el("p", { text: answer.why_not_firm })) : null,
    ];
  }

  #flexWords({ taken_until: until }) {
    return until
      ? `Beyond your firm quota: can be taken until ${moment(toWall(until, this.config.zone), this.nowWall())} by somebody worse served; then it is yours.`
      : "Beyond your firm quota, but it starts so soon that nobody can take it any more.";
  }

  /** "Bo’s flex, 2 GPU-h": the group stands for its member where names are hidden. */
  #displaced(gone) {
    return gone.map((one) => `${one.user ?? one.account}’s flex, ${figure(one.gpu_hours)} GPU-h`).join("; ");
  }

  #no(refusal, next) {
    return [el("div", { class: "notice notice-bad", "data-code": refusal.code ?? "" }, icon("alert"),
      el("div", { class: "stack tight" },
        el("p", { text: refusal.detail ?? "This cannot be booked." }), next && this.#nextButton(next)))];
  }

  #nextButton(next) {
    const gpus = next.gpu_ids.map((id) => this.store.gpu(id)).filter(Boolean);
    const [start, end] = [next.start, next.end].map((at) => toWall(at, this.config.zone));
    const words = `${span(start, end, this.nowWall())}${gpus.length ? ` on ${gpuWords(gpus)}` : ""}`;
    return el("button", {
      type: "button", class: "btn btn-s next-slot", text: `Take ${words}`,
      title: duration(wallSeconds(start, end)),
      on: { click: () => this.take({ gpuIds: next.gpu_ids, start, end }) },
    });
  }
}
