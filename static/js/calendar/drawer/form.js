// The booking form in the drawer: everything that dragging does, by keyboard.
import "../../fields/when.js";
import { el, setText } from "../../dom.js";
import { duration, gib } from "../../format.js";
import { creditsPerHour, gpus as gpuCount, shortClass } from "../words.js";
import { wallSeconds } from "../zone.js";
import { gettext } from "../../words.js";

const LENGTH_HOURS = [1, 2, 4, 8, 12, 24];

export class Form {
  constructor(form, { draft, store, config, nowWall, submit }) {
    Object.assign(this, { form, draft, store, config, nowWall });
    const part = (name) => form.querySelector(`[name=${name}]`);
    [this.start, this.end, this.purpose, this.membership] = ["start", "end", "purpose", "membership"].map(part);
    this.list = form.querySelector("#gpu-list");
    this.count = form.querySelector("#gpu-count");
    this.length = form.querySelector("#length");
    this.#lengths(form.querySelector("#lengths"));
    for (const input of [this.start, this.end]) input.step = String(Math.min(config.grid_seconds, 3600));
    this.start.addEventListener("change", () => this.#startMoved());
    this.end.addEventListener("change", () => draft.set({ end: this.end.value }, "form"));
    this.purpose.addEventListener("input", () => draft.set({ purpose: this.purpose.value }, "form"));
    this.membership?.addEventListener("change", () => draft.set({ membership: Number(this.membership.value) }, "form"));
    this.list.addEventListener("change", ({ target }) => draft.toggleGpu(Number(target.value), target.checked, "form"));
    form.querySelector("#more-gpus").addEventListener("click", () => this.#more());
    form.querySelector("#fewer-gpus").addEventListener("click", () => this.#fewer());
    form.querySelector("#start-now").addEventListener("click", () => draft.setStart(nowWall(), "form"));
    form.addEventListener("submit", (event) => { event.preventDefault(); submit(); });
    draft.addEventListener("change", () => this.draw());
    for (const type of ["loaded", "changed"]) store.addEventListener(type, () => this.draft.open && this.#drawGpus());
  }

  #lengths(node) {
    const longest = this.config.longest_seconds;
    for (const seconds of LENGTH_HOURS.map((hours) => hours * 3600).filter((s) => s <= longest)) {
      node.append(el("button", {
        type: "button", class: "chip", text: duration(seconds), "data-seconds": seconds,
        on: { click: () => this.draft.setLength(seconds, "form") },
      }));
    }
  }

  /** Moving the start keeps the length. */
  #startMoved() {
    if (this.start.value) this.draft.setStart(this.start.value, "form");
    else this.draft.set({ start: "" }, "form");
  }

  /** Adds one more free GPU, first of the same class and node as the chosen ones. Without a
   *  choice it adds the cheapest free one. */
  #more() {
    const chosen = this.draft.gpuIds.map((id) => this.store.gpu(id)).filter(Boolean);
    const free = this.store.gpus.filter((gpu) => !this.draft.gpuIds.includes(gpu.id) && this.#isFree(gpu));
    const model = chosen.at(-1);
    const order = (gpu) => [
      model && gpu.gpu_class !== model.gpu_class, this.#foreign(gpu), !gpu.favourite, gpu.weight,
      model && gpu.node !== model.node,
    ].map(Number);
    const compare = (a, b) => order(a).map((one, i) => one - order(b)[i]).find((one) => one) ?? 0;
    const [found] = free.sort(compare);
    if (!found) this.#hint(gettext("No other GPU is free then."));
    else if (!model || found.gpu_class === model.gpu_class) this.draft.toggleGpu(found.id, true, "form");
    else {
      this.#hint(gettext("No other {gpu_class} is free then.", { gpu_class: shortClass(model.gpu_class) }), el("button", {
        type: "button", class: "btn btn-s", id: "other-class", text: gettext("Add {gpu_class}", { gpu_class: shortClass(found.gpu_class) }),
        on: { click: () => {
          this.draft.toggleGpu(found.id, true, "form");
          this.form.querySelector("#more-gpus").focus();
        } },
      }));
    }
  }

  #hint(text, button = null) {
    this.form.querySelector("#gpu-hint").replaceChildren(text, ...(button ? [" ", button] : []));
  }

  /** Returns true if a process without a right to the GPU uses it and may still do so at the start. */
  #foreign(gpu) {
    return gpu.foreign && Boolean(this.draft.start) && wallSeconds(this.nowWall(), this.draft.start) < 3600;
  }

  /** Returns how another system gives out the chosen GPUs. "" if it is the portal. */
  #engineNotes() {
    const notes = this.draft.gpuIds.map((id) => this.store.gpu(id)?.engine_note).filter(Boolean);
    return [...new Set(notes)].join(" ");
  }

  #fewer() {
    const last = this.draft.gpuIds.at(-1);
    if (last !== undefined) this.draft.toggleGpu(last, false, "form");
  }

  #isFree(gpu) {
    if (this.draft.seconds() <= 0) return gpu.bookable;
    return this.store.isFree(gpu, this.draft.startAt(), this.draft.endAt(), this.draft.editing?.id);
  }

  draw() {
    const { draft } = this;
    if (!draft.open) return;
    const put = (input, value) => { if (input && input.value !== value) input.value = value; };
    put(this.start, draft.start);
    put(this.end, draft.end);
    put(this.purpose, draft.purpose);
    if (draft.membership) put(this.membership, String(draft.membership));
    // The paying membership cannot change, and neither can the start of a running booking.
    if (this.membership) this.membership.closest(".field").hidden = Boolean(draft.editing);
    const runs = draft.editing?.state === "active";
    this.start.disabled = this.form.querySelector("#start-now").disabled = runs;
    const seconds = draft.seconds();
    this.length.textContent = seconds > 0 ? duration(seconds) : "";
    for (const chip of this.form.querySelectorAll("[data-seconds]")) {
      chip.setAttribute("aria-pressed", String(Number(chip.dataset.seconds) === draft.lastSeconds));
    }
    this.form.querySelector("#drawer-title").textContent = draft.editing ? gettext("Change your reservation") : gettext("New booking");
    this.#drawGpus();
  }

  #drawGpus() {
    const groups = this.store.groups(this.store.gpus);
    const print = JSON.stringify(groups.map((group) => [group.key, group.gpus.map((gpu) => [gpu.id, gpu.bookable])]));
    if (print !== this.shownGroups) {
      this.list.replaceChildren(...groups.map((group) => this.#group(group)));
      this.shownGroups = print;
    }
    for (const box of this.list.querySelectorAll("input")) {
      const id = Number(box.value);
      const gpu = this.store.gpu(id);
      box.checked = this.draft.gpuIds.includes(id);
      const taken = gpu.bookable && !this.#isFree(gpu);
      const foreign = gpu.bookable && !taken && this.#foreign(gpu) && gettext("used by someone else now");
      const word = gpu.bookable ? (taken ? gettext("booked then") : foreign || "") : gpu.out || gettext("not available");
      box.parentElement.classList.toggle("is-taken", taken);
      box.parentElement.classList.toggle("is-foreign", Boolean(foreign));
      box.parentElement.title = word;
      setText(box.parentElement.querySelector(".visually-hidden"), [gettext("GPU {index}", { index: gpu.index }), word].filter(Boolean).join(", "));
    }
    const n = this.draft.gpuIds.length;
    this.count.textContent = n ? gpuCount(n) : gettext("none");
    this.form.querySelector("#fewer-gpus").disabled = !n;
    // The message of "+" stays until the GPUs or the time change.
    const about = JSON.stringify([this.draft.gpuIds, this.draft.start, this.draft.end]);
    if (about !== this.hintAbout) this.#hint(this.#engineNotes());
    this.hintAbout = about;
  }

  #group(group) {
    const bytes = group.gpus[0].memory_total_bytes;
    const facts = [shortClass(group.gpuClass), bytes && gib(bytes), creditsPerHour(group.gpus[0])].filter(Boolean);
    return el("div", { class: "gpu-group", role: "group", "aria-label": `${group.node}, ${shortClass(group.gpuClass)}` },
      el("p", { class: "gpu-group-name" }, el("strong", { text: group.node }), ` ${facts.join(", ")}`),
      el("div", { class: "gpu-chips" }, ...group.gpus.map((gpu) => el("label", { class: "gpu-chip" },
        el("input", { type: "checkbox", name: "gpu", value: gpu.id, disabled: !gpu.bookable }),
        el("span", { "aria-hidden": "true", text: gpu.index }),
        el("span", { class: "visually-hidden" })))));
  }
}
