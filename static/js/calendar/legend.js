// Which colour is which group, among what is in view.
import { el } from "../dom.js";
import { hueClass } from "./bars.js";

/** Keep the list of groups right as the store changes. */
export function watchLegend(list, store) {
  const draw = () => {
    const groups = new Map();
    for (const { account, hue } of store.visibleReservations()) groups.set(account, hue);
    const print = JSON.stringify([...groups]);
    if (print === list.dataset.shown) return;
    list.dataset.shown = print;
    list.replaceChildren(...[...groups].sort(([a], [b]) => a.localeCompare(b)).map(([account, hue]) =>
      el("li", {}, el("span", { class: `key is-firm ${hueClass(hue)}` }), account)));
  };
  for (const type of ["loaded", "changed", "filtered"]) store.addEventListener(type, draw);
}
