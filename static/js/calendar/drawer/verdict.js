// The portal's answer to the draft, shown before any button is pressed.
import { api } from "../../api.js";
import { el } from "../../dom.js";
import { judgedNodes } from "./judged.js";
import { problemWords } from "./problem.js";
import { refusalNodes } from "./refusal.js";
import { addWall, floorGrid, wallSeconds } from "../zone.js";

const WAIT_MS = 200;

export class Verdict {
  /** take(slot): move the draft to that slot. wait(draft): put it on the waitlist, or null. */
  constructor(node, { draft, store, config, nowWall, take, wait = null }) {
    Object.assign(this, { node, draft, store, config, nowWall, take, wait });
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

  /** Ask now. Resolves to the answer, or to null if a newer request was sent meanwhile. */
  async ask(body = this.body(), print = JSON.stringify({ ...body, purpose: "" })) {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = new AbortController();
    this.asked = print;
    try {
      this.answer = await api("POST", "/reservations/preview", body, { signal: this.abort.signal });
      this.#show(...(this.answer.ok ? judgedNodes(this.answer, this.#view())
        : refusalNodes(this.answer.refusal ?? {}, this.answer.next_slot, this.#view(), this.answer.works_instead)));
    } catch (error) {
      if (error.name === "AbortError") return null;
      this.asked = "";
      this.refused(error);
    }
    this.node.removeAttribute("aria-busy");
    return this.answer;
  }

  /** Show a refusal that came as a Problem, from booking or from the preview. */
  refused(error) {
    if (error.name !== "Problem") throw error;
    this.answer = { ok: false };
    const { code, title, numbers, longest_end } = error.problem;
    this.#show(...refusalNodes({ code, title, numbers, longest_end, detail: problemWords(error) }, error.nextSlot, this.#view(), error.worksInstead));
  }

  #show(...nodes) {
    this.node.replaceChildren(...nodes.filter(Boolean));
    this.node.dispatchEvent(new CustomEvent("shown", { bubbles: true }));
  }

  /** Returns the draft cut to a part of its time, on the grid: {seconds, take()}, or null if
   *  nothing is left. */
  #fit(part) {
    const { draft } = this;
    const length = wallSeconds(draft.start, draft.end);
    const end = floorGrid(addWall(draft.start, Math.floor(length * part)), this.config.grid_seconds, this.config.zone);
    const seconds = wallSeconds(draft.start, end);
    if (part >= 1 || seconds < this.config.grid_seconds) return null;
    return { seconds, take: () => { draft.set({ end }, "slot"); document.getElementById("book").focus(); } };
  }

  /** Returns the data and the callbacks for the elements of an answer. */
  #view() {
    const { config, store, nowWall, take, draft, wait } = this;
    const voucher = config.vouchers?.find((one) => one.membership === draft.membership && one.id !== draft.voucher);
    return {
      config, store, nowWall, take,
      byVoucher: Boolean(draft.voucher),
      fit: (part) => this.#fit(part),
      useVoucher: voucher && !draft.editing ? () => draft.set({ voucher: voucher.id }, "voucher") : null,
      wait: wait && !draft.editing ? () => wait(draft) : null,
    };
  }
}
