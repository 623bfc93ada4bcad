// The facts of a reservation in the drawer, and the actions of its owner.
import { el, setVars } from "../../dom.js";
import { duration } from "../../format.js";
import { icon } from "../../icons.js";
import { toastProblem } from "../../toast.js";
import { askNode } from "./askholder.js";
import { barSign, isFrozen, kindWords, owner } from "../timeline/bars.js";
import { gpuWords, moment, span } from "../words.js";
import { addWall, toWall, wallSeconds } from "../zone.js";
import { gettext } from "../../words.js";
import { stateWord } from "../../state_words.js";

export class Details {
  constructor(node, { store, config, nowWall, actions, change, close }) {
    Object.assign(this, { node, store, config, nowWall, actions, change, close });
    this.shownId = null;
    for (const type of ["loaded", "changed"]) {
      store.addEventListener(type, () => this.shownId && this.#redraw());
    }
  }

  show(id) {
    this.shownId = id;
    return this.#redraw();
  }

  /** Draw the reservation from the store. Returns false if it is gone. */
  #redraw() {
    const found = this.store.reservations.get(this.shownId);
    if (!found) {
      this.shownId = null;
      if (!this.node.hidden) this.close();
      return false;
    }
    // Bookings of others do not remove a message that is being written.
    const print = JSON.stringify(found);
    if (this.shownPrint === print && this.node.querySelector(".ask-holder[open]")) return true;
    this.shownPrint = print;
    const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    this.node.replaceChildren(this.#head(found), this.#body(found), this.#foot(found));
    if (focused) this.node.querySelector(`[data-act="${focused}"]`)?.focus();
    return true;
  }

  #head(r) {
    const avatar = el("span", { class: "avatar", "aria-hidden": "true", text: (r.mine ? this.config.me : owner(r)).slice(0, 1).toUpperCase() });
    setVars(avatar, { "--hue": r.hue ?? 210 });
    return el("div", { class: "drawer-head" }, avatar,
      el("h2", { id: "details-title", tabindex: "-1", text: r.mine ? gettext("Your reservation") : gettext("{owner}’s reservation", { owner: owner(r) }) }),
      el("button", { type: "button", class: "btn btn-quiet btn-icon", "aria-label": gettext("Close"), "data-close": true }, icon("close")));
  }

  #body(r) {
    const gpus = r.gpu_ids.map((id) => this.store.gpu(id)).filter(Boolean);
    const [start, end] = [r.start, r.end].map((at) => toWall(at, this.config.zone));
    const facts = [
      [gettext("When"), span(start, end, this.nowWall())], [gettext("Length"), duration(wallSeconds(start, end))],
      [gettext("GPUs"), gpuWords(gpus)], [gettext("Charged to"), this.config.titles[r.account] ?? r.account], [gettext("For"), r.purpose],
      [gettext("Repeats"), r.series ? gettext("yes, series {series}", { series: r.series }) : ""],
      [gettext("Shared with"), r.shared ? gettext("you") : (r.co_users ?? []).map((one) => one.user).join(", ")],
    ].filter(([, value]) => value);
    return el("div", { class: "drawer-body stack" },
      el("p", { class: "row" },
        el("span", { class: `state state-${r.state}` }, icon(r.state), stateWord(r.state)), this.#kind(r, start)),
      el("dl", { class: "details-facts" }, ...facts.map(([name, value]) =>
        el("div", {}, el("dt", { text: name }), el("dd", { text: value })))),
      el("p", { class: "hint", text: this.#kindWords(r, start) }),
      askNode(r, this) ?? "");
  }

  #kind(r) {
    const sign = barSign(r);
    return el("span", { class: `chip kind-chip is-${r.kind}` }, sign ? icon(sign) : null, kindWords(r));
  }

  #kindWords(r, start) {
    if (r.gap) return gettext("Nobody booked this time. A job uses the gap and leaves when someone books the GPUs.");
    if (r.overstay) return gettext("Its booked time is over. It stays until someone books the GPUs.");
    if (r.kind === "firm") return gettext("Firm (guaranteed): nobody can take it.");
    if (isFrozen(r)) return gettext("Flex, now safe: nobody can take it any more.");
    const until = r.taken_until ? toWall(r.taken_until, this.config.zone) : addWall(start, -this.config.freeze_seconds);
    return gettext("Flex: until {time}, someone who has had less GPU time can take it. {chance}", { time: moment(until, this.nowWall()), chance: r.chance?.text ?? "" });
  }

  #foot(r) {
    const foot = el("div", { class: "drawer-foot" });
    const give = (options) => (r.state === "confirmed" ? this.actions.cancel(r, options) : this.actions.release(r, options));
    const [words, sign] = r.state === "confirmed" ? [gettext("Cancel it"), "trash"] : [gettext("Give back now"), "released"];
    if (r.editable && r.mine) {
      foot.append(this.#button(gettext("Change"), "edit", () => this.change(r), "btn-primary"),
        this.#button(gettext("1 h longer"), "clock", () => this.actions.longer(r), ""),
        this.#button(words, sign, () => give(), "btn-danger"));
    } else if (r.editable) {
      const reason = el("input", { class: "input grow", "aria-label": gettext("Reason (the owner sees it)"), placeholder: gettext("Reason (the owner sees it)"), maxlength: 200 });
      foot.classList.add("for-others");
      foot.append(reason, this.#button(words, sign, () => give({ reason: reason.value }), "btn-danger"));
    }
    if (r.mine || this.config.accounts.includes(r.account) || this.config.operator) {
      const page = this.config.urls.reservation.replace("/0/", `/${r.id}/`);
      if ((r.mine || r.shared) && (r.state === "confirmed" || r.state === "active")) {
        foot.append(el("a", { class: "btn btn-quiet", href: `${page}#steps-title` }, r.state === "active" ? gettext("What to do now") : gettext("What to do next")));
      }
      foot.append(el("a", { class: "btn btn-quiet", href: page }, gettext("Open"), icon("arrow-right")));
    }
    foot.hidden = !foot.childElementCount;
    return foot;
  }

  #button(text, name, act, look) {
    return el("button", {
      type: "button", class: `btn ${look}`, "data-act": name,
      on: { click: async (event) => {
        const { currentTarget } = event;
        currentTarget.disabled = true;
        try {
          await act();
        } catch (error) {
          toastProblem(error);
        }
        currentTarget.disabled = false;
      } },
    }, icon(name), text);
  }
}
