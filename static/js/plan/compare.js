// The two plans to compare. The form keeps them, since answers replace the cards.

import { el } from "../dom.js";

const kept = document.getElementById("plan-compared");
const MOST = 2;
const marked = () => [...kept.children].map((input) => input.value);

/** Shows the marked plans in the cards. */
export function showMarks() {
  const now = new Set(marked());
  for (const box of document.querySelectorAll("[data-compare]")) box.checked = now.has(box.dataset.compare);
}

/** Calls `again` each time a plan is marked. The two plans marked last count. */
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
