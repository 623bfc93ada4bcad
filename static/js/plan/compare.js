// Which two plans stand side by side: kept in the form, since answers replace the cards.

import { el } from "../dom.js";

const kept = document.getElementById("plan-compared");
const MOST = 2;
const marked = () => [...kept.children].map((input) => input.value);

/** Shows in the cards what is marked. */
export function showMarks() {
  const now = new Set(marked());
  for (const box of document.querySelectorAll("[data-compare]")) box.checked = now.has(box.dataset.compare);
}

/** Calls `again` whenever somebody marks a plan; the two marked last count. */
export function onMark(again) {
  document.addEventListener("change", ({ target }) => {
    const name = target.dataset?.compare;
    if (!name) return;
    const others = marked().filter((one) => one !== name);
    const wanted = target.checked ? [...others, name].slice(-MOST) : others;
    kept.replaceChildren(...wanted.map((value) => el("input", { type: "hidden", name: "compare", value })));
    showMarks();
    again();
  });
}
