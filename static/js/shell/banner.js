// Shows a line under the top bar: the socket is down and when it tries again, or
// the figures are late.

import { setText } from "../dom.js";
import { gettext } from "../words.js";

const banner = document.getElementById("live-banner");
const words = document.getElementById("live-words");
const button = document.getElementById("live-retry");
const states = new Map();

function show() {
  // A lost connection explains late data, so the line shows only the connection.
  const worst = [...states.values()].filter((state) => state.word !== "open").sort((a, b) => (a.word === "late") - (b.word === "late"))[0];
  const refused = worst?.word === "refused";
  banner.hidden = !worst || worst.word === "paused" || (worst.word === "connecting" && !worst.broken);
  if (banner.hidden) return;
  button.hidden = refused || worst.word === "late";
  if (refused) setText(words, gettext("You may not follow this page live. Reload it to see whether that changed."));
  else if (worst.word === "late") setText(words, gettext("Live data is late: the newest reading is {seconds} s old.", { seconds: Math.round(worst.seconds) }));
  else if (worst.word === "waiting") setText(words, gettext("Live connection lost. Trying again in {seconds} s.", { seconds: worst.retryInSeconds }));
  else setText(words, gettext("Live connection lost. Trying again now."));
}

document.addEventListener("live:state", ({ detail }) => {
  const before = states.get(detail.path);
  const broken = detail.word === "waiting" || (before?.broken && detail.word === "connecting");
  states.set(detail.path, { ...detail, broken });
  show();
});
button.addEventListener("click", () => document.dispatchEvent(new CustomEvent("live:retry")));
