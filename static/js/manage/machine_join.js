// The page of a machine that joins: the countdown of its token, and each check as soon
// as the portal knows it. The server renders the part again every two seconds.

import { redraw } from "../fragment.js";

const EVERY_MS = 2000;

function countDown() {
  const chip = document.querySelector("[data-expires]");
  if (!chip) return;
  const left = Math.max(0, Math.ceil(Number(chip.dataset.expires) - Date.now() / 1000));
  const text = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
  const place = chip.querySelector("span");
  if (place.textContent !== text) place.textContent = text;
}

async function look() {
  const part = document.getElementById("join-state");
  if (!part || part.hasAttribute("data-done")) return;
  if (!document.hidden) await redraw("join-state", part.dataset.url);
  countDown();
  setTimeout(look, EVERY_MS);
}

countDown();
setInterval(countDown, 1000);
setTimeout(look, EVERY_MS);
