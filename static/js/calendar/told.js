// Something happened to a reservation of one's own: said at once, with the way to it.
import { el } from "../dom.js";
import { icon } from "../icons.js";

/** notice: {id, kind, text, reservation}; it stays until it is put away. */
export function tellNotice({ text, reservation }) {
  const node = el("div", { class: "toast" }, icon("displaced"),
    el("span", { class: "grow", text }),
    el("a", { class: "btn btn-quiet btn-s", href: `/reservations/${reservation}/`, text: "Look" }),
    el("button", {
      type: "button", class: "btn btn-quiet btn-icon btn-s", "aria-label": "Dismiss",
      on: { click: () => node.remove() },
    }, icon("close")));
  document.getElementById("toasts").append(node);
}
