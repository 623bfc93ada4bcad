// Says in one line under the top bar that a socket is down, and when it tries again.

import { setText } from "./dom.js";

const banner = document.getElementById("live-banner");
const words = document.getElementById("live-words");
const button = document.getElementById("live-retry");
const states = new Map();

function show() {
  const worst = [...states.values()].find((state) => state.word !== "open");
  const refused = worst?.word === "refused";
  banner.hidden = !worst || worst.word === "paused" || (worst.word === "connecting" && !worst.broken);
  if (banner.hidden) return;
  button.hidden = refused;
  if (refused) setText(words, "You may not follow this page live. Reload it to see whether that changed.");
  else if (worst.word === "waiting") setText(words, `Live connection lost. Trying again in ${worst.retryInSeconds} s.`);
  else setText(words, "Live connection lost. Trying again now.");
}

document.addEventListener("live:state", ({ detail }) => {
  const before = states.get(detail.path);
  const broken = detail.word === "waiting" || (before?.broken && detail.word === "connecting");
  states.set(detail.path, { ...detail, broken });
  show();
});
button.addEventListener("click", () => document.dispatchEvent(new CustomEvent("live:retry")));
