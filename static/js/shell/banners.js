// On a phone the messages under the top bar take one line: the first message, cut off if
// it is too long (by base.css). A button opens all.

import { setAttr } from "../dom.js";

const phone = matchMedia("(max-width: 40rem)"); // as in base.css
const root = document.getElementById("banners");
const button = document.getElementById("banners-more");

function show() {
  const shown = [...root.querySelectorAll(".banner:not([hidden])")];
  root.classList.toggle("is-folded", phone.matches && button.getAttribute("aria-expanded") === "false");
  const lines = shown.reduce((sum, one) => sum + Math.max(1, one.querySelectorAll("p").length), 0);
  const words = shown[0]?.querySelector("p > span");
  const cut = words && words.scrollWidth > words.clientWidth;
  const more = lines > 1 || cut || shown[0]?.id === "zone-banner";
  const open = button.getAttribute("aria-expanded") === "true";
  setAttr(button, "hidden", !phone.matches || !shown.length || !(more || open));
  button.querySelector("b").textContent = lines > 1 ? `+${lines - 1}` : "";
}

if (root) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") === "false"));
    show();
  });
  phone.addEventListener("change", show);
  addEventListener("resize", show);
  // Banners of the connection and of the time zone appear and disappear.
  const observer = new MutationObserver(show);
  for (const banner of root.querySelectorAll(".banner")) observer.observe(banner, { attributeFilter: ["hidden"] });
  show();
}
