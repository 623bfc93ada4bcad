// Proposing a swap: choose a person or group, then one of their bookings.

import { el } from "../dom.js";
import { gettext } from "../words.js";

function start(box) {
  const select = box.querySelector("select");
  const who = box.querySelector("#swap-who");
  const options = [...select.options].filter((option) => option.value);
  const names = [...new Set(options.map((option) => option.dataset.who))].sort();
  box.querySelector("datalist").replaceChildren(...names.map((name) => el("option", { value: name })));
  who.closest(".field").hidden = false;
  const show = () => {
    const asked = who.value.trim().toLowerCase();
    for (const option of options) {
      option.hidden = option.disabled = !option.selected && (!asked || !option.dataset.who.toLowerCase().includes(asked));
    }
    const left = options.filter((option) => !option.hidden).length;
    select.options[0].textContent = asked && !left ? gettext("none: no booking of theirs") : gettext("none: give it away");
  };
  who.addEventListener("input", show);
  select.addEventListener("change", show);
  show();
}

for (const box of document.querySelectorAll("[data-swap]")) start(box);
// reservation.js replaces the middle of the page when the reservation changes.
new MutationObserver(() => {
  for (const box of document.querySelectorAll("[data-swap]")) {
    if (box.querySelector(".field[hidden]")) start(box);
  }
}).observe(document.getElementById("content"), { childList: true });
