// The legend: colours of the groups in view, and the signs that are used.
import { el } from "../dom.js";
import { hueClass } from "./timeline/bars.js";

/** Keep the list of groups and the signs up to date. */
export function watchLegend(list, store, title) {
  const keys = [...document.querySelectorAll(".legend [data-when]")];
  const draw = () => {
    const shown = store.visibleReservations();
    const groups = new Map();
    for (const { account, hue } of shown) groups.set(account, hue);
    const there = new Set(store.closures.map((closure) => closure.kind));
    if (shown.some((reservation) => reservation.overstay)) there.add("overstay");
    if (store.waiting.length) there.add("ghost");
    for (const key of keys) key.hidden = !there.has(key.dataset.when);
    const print = JSON.stringify([...groups]);
    if (print === list.dataset.shown) return;
    list.dataset.shown = print;
    list.replaceChildren(...[...groups].map(([account, hue]) => [title(account), hue])
      .sort(([a], [b]) => a.localeCompare(b)).map(([name, hue]) =>
        el("li", {}, el("span", { class: `key is-firm ${hueClass(hue)}` }), name)));
  };
  for (const type of ["loaded", "changed", "filtered"]) store.addEventListener(type, draw);
}
