// The list of alerts, kept up to date: when the socket reports a change, the list is
// fetched again with the same filter. Unfolded alerts stay unfolded.

import { setClass, setText } from "../dom.js";
import { redraw } from "../fragment.js";
import { connect } from "../live.js";
import { gettext, ngettext } from "../words.js";

const AGAIN_MS = 60_000;
const SOONEST_MS = 1_000;
const WORDS = {
  connecting: [gettext("connecting"), "live live-wait"],
  open: [gettext("live"), "live live-ok"],
  waiting: [gettext("not live: reconnecting"), "live live-off"],
  paused: [gettext("paused while hidden"), "live live-wait"],
  refused: [gettext("not live"), "live live-off"],
};

const status = document.getElementById("alerts-live");
const announcer = document.getElementById("announcer");
const list = () => document.getElementById("alert-list");
const unfolded = new Set();
let wanted = 0;
let shown = Number(list().dataset.open);

/** Fetches the list again, at most once a second, and not while a field in it has the focus. */
function refresh() {
  if (wanted) return;
  wanted = setTimeout(async () => {
    wanted = 0;
    if (list().querySelector("input:focus")) refresh();
    else if (await redraw("alert-list", list().dataset.url)) drawn();
  }, SOONEST_MS);
}

function unfold(id) {
  const details = document.querySelector(`details[data-alert="${id}"]`);
  if (details) details.open = true;
  return details;
}

document.addEventListener("toggle", ({ target }) => {
  if (!target.matches?.("details[data-alert]")) return;
  unfolded[target.open ? "add" : "delete"](target.dataset.alert);
}, true);

function drawn() {
  for (const id of unfolded) unfold(id);
  const count = Number(list().dataset.open);
  if (count !== shown) setText(announcer, ngettext("{n} alert in this list", "{n} alerts in this list", count));
  shown = count;
}

const fromAddress = /^#alert-(\d+)$/.exec(location.hash);
if (fromAddress) unfold(fromAddress[1])?.scrollIntoView({ block: "nearest" });
addEventListener("hashchange", () => {
  const found = /^#alert-(\d+)$/.exec(location.hash);
  if (found) unfold(found[1])?.scrollIntoView({ block: "nearest" });
});

connect("/ws/alerts/", {
  onJson: (message) => { if (message.type === "alerts.changed") refresh(); },
  onState: ({ word }) => {
    const [text, name] = WORDS[word] ?? WORDS.refused;
    setText(status, text);
    setClass(status, name);
    if (word === "open") refresh();
  },
});
setInterval(() => { if (!document.hidden) refresh(); }, AGAIN_MS);
