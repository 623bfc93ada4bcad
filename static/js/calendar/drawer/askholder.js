// For a Reservation of another user: write to its holder, or propose a swap.
import { api } from "../../api.js";
import { el } from "../../dom.js";
import { icon } from "../../icons.js";
import { toast, toastProblem } from "../../toast.js";
import { gpuWords, span } from "../words.js";
import { toWall } from "../zone.js";
import { gettext } from "../../words.js";

/** Returns the fold for one Reservation of another user. null if it has no holder to ask. */
export function askNode(r, { store, config, nowWall }) {
  if (r.mine || r.gap || !["confirmed", "active"].includes(r.state) || !config.memberships.length) return null;
  const own = [...store.reservations.values()].filter((one) => one.mine && !one.gap && one.editable);
  const line = (one) => {
    const gpus = one.gpu_ids.map((id) => store.gpu(id)).filter(Boolean);
    return gettext("{span} on {gpus}", { span: span(toWall(one.start, config.zone), toWall(one.end, config.zone), nowWall()), gpus: gpuWords(gpus) });
  };
  const swap = el("select", { class: "select", id: "ask-swap", name: "swap" },
    el("option", { value: "", text: gettext("no swap, only a message") }),
    ...own.map((one) => el("option", { value: one.id, text: line(one) })));
  const message = el("input", { class: "input", id: "ask-message", name: "message", maxlength: 200, autocomplete: "off", placeholder: gettext("e.g. Could you free it by 18:00?") });
  const send = el("button", { type: "submit", class: "btn btn-s" }, icon("arrow-right"), gettext("Send"));
  const form = el("form", { class: "stack tight", novalidate: true, on: { submit: async (event) => {
    event.preventDefault();
    send.setAttribute("aria-busy", "true");
    try {
      if (swap.value) {
        await api("POST", "/offers", { reservation: Number(swap.value), wanted: r.id, message: message.value });
        toast(gettext("Swap proposed. You see the answer in your notices."));
      } else {
        if (!message.value.trim()) { toast(gettext("Write a message first."), { bad: true }); message.focus(); return; }
        await api("POST", `/reservations/${r.id}/ask`, { message: message.value });
        toast(gettext("Sent. The holder reads it in the portal’s notices."));
      }
      form.reset();
      fold.open = false;
    } catch (error) {
      toastProblem(error);
    } finally {
      send.removeAttribute("aria-busy");
    }
  } } },
  el("div", { class: "field" }, el("label", { for: "ask-message", text: gettext("Message") }), message),
  own.length ? el("div", { class: "field" }, el("label", { for: "ask-swap", text: gettext("Offer a booking of yours for it") }), swap) : null,
  el("p", { class: "hint", text: gettext("The holder sees your name.") }),
  el("div", { class: "row" }, send));
  const fold = el("details", { class: "ask-holder" },
    el("summary", { text: own.length ? gettext("Ask the holder, or request a swap") : gettext("Ask the holder") }), form);
  return fold;
}
