// Notices as toasts on every open page.
import { el } from "../dom.js";
import { icon } from "../icons.js";
import { gettext } from "../words.js";

/** notice: {id, kind, text, url, icon}. The toast stays until it is dismissed. */
export function tellNotice({ id, text, url, icon: name }) {
  // The page of the job shows it already, and a toast would cover its charts.
  if (url.startsWith("/jobs/") && url === location.pathname) return;
  const toasts = document.getElementById("toasts");
  if (toasts.querySelector(`[data-notice="${id}"]`)) return;
  const node = el("div", { class: "toast", "data-notice": id }, icon(name ?? "bell"),
    el("span", { class: "grow", text }),
    el("a", { class: "btn btn-quiet btn-s", href: url, text: gettext("Look") }),
    el("button", {
      type: "button", class: "btn btn-quiet btn-icon btn-s", "aria-label": gettext("Dismiss"),
      on: { click: () => node.remove() },
    }, icon("close")));
  toasts.append(node);
}
