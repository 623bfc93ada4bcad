// A card with the facts of a bar, shown while the bar has the pointer or the focus.
// Escape closes the card. A touch opens the details instead.
import { el } from "../../dom.js";
import { duration } from "../../format.js";
import { kindWords, owner } from "./bars.js";
import { gpuWords, span } from "../words.js";
import { toWall, wallSeconds } from "../zone.js";
import { stateWord } from "../../state_words.js";

const REST_MS = 180;
const GAP_PX = 6;

export class HoverCard {
  /** title(account): the name of a group as people read it. */
  constructor(host, { store, zone, nowWall, title }) {
    Object.assign(this, { host, store, zone, nowWall, title });
    this.card = el("div", { class: "hover-card", role: "tooltip", hidden: true });
    // In the page's main landmark: screen readers may skip content outside all landmarks.
    document.getElementById("content").append(this.card);
    host.addEventListener("pointerover", (event) => event.pointerType !== "touch" && this.#over(event.target));
    host.addEventListener("pointerleave", () => this.#hide());
    host.addEventListener("pointerdown", () => this.#hide());
    host.addEventListener("scroll", () => this.#hide(), true);
    host.addEventListener("focusin", ({ target }) => target.matches(":focus-visible") && this.#show(target.closest("[data-reservation]")));
    host.addEventListener("focusout", () => this.#hide());
    this.card.addEventListener("pointerleave", () => this.#hide());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.card.hidden) return;
      event.preventDefault();
      this.#hide();
    });
  }

  #over(target) {
    const face = target.closest(".ec-event")?.querySelector("[data-reservation]");
    if (face === this.face) return;
    this.#hide();
    if (!face) return;
    this.face = face;
    this.timer = setTimeout(() => this.#show(face), REST_MS);
  }

  #hide() {
    clearTimeout(this.timer);
    this.face = null;
    this.card.hidden = true;
  }

  #show(face) {
    const found = face?.isConnected && this.store.reservations.get(Number(face.dataset.reservation));
    if (!found || this.host.querySelector(".ec-preview")) return;
    this.face = face;
    this.card.replaceChildren(...this.#lines(found));
    this.card.hidden = false;
    this.#place(face.closest(".ec-event").getBoundingClientRect());
  }

  #lines(r) {
    const gpus = r.gpu_ids.map((id) => this.store.gpu(id)).filter(Boolean);
    const [start, end] = [r.start, r.end].map((at) => toWall(at, this.zone));
    return [
      el("strong", { text: (r.mine && r.purpose) || owner(r) }),
      el("span", { text: `${span(start, end, this.nowWall())} (${duration(wallSeconds(start, end))})` }),
      el("span", { text: gpuWords(gpus) }),
      el("span", { class: "muted", text: [this.title(r.account), kindWords(r), stateWord(r.state)].filter(Boolean).join(", ") }),
      !r.mine && r.purpose ? el("span", { class: "muted", text: r.purpose }) : null,
    ].filter(Boolean);
  }

  /** Places the card under the bar, or above it if there is no room, within the window. */
  #place(bar) {
    const { width, height } = this.card.getBoundingClientRect();
    const below = bar.bottom + GAP_PX;
    const top = below + height <= innerHeight ? below : bar.top - GAP_PX - height;
    const left = Math.min(Math.max(8, bar.left), innerWidth - width - 8);
    this.card.style.setProperty("inset", `${top}px auto auto ${left}px`);
  }
}
