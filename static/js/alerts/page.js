// The list of alerts, kept up to date: when the socket reports a change, the list is
// fetched again with the same filter. Unfolded alerts stay unfolded, and stay in the list
// until the reader folds them. The row with the focus, or under the pointer, keeps its place on the screen.

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
// The reader may have unfolded alerts before this script was loaded.
const unfolded = new Set([...list().querySelectorAll("details[open]")].map((details) => details.dataset.alert));
let wanted = 0;
let shown = Number(list().dataset.open);

/** Whether a press has begun, or a field of the list has the focus or holds a text. */
function inUse() {
  const typed = [...list().querySelectorAll("details[open] .when input")].some((field) => field.value);
  return typed || list().querySelector("input:focus, :active") !== null;
}

/** Fetches the list again, at most once a second, and not while it is in use. */
function refresh() {
  if (wanted) return;
  wanted = setTimeout(async () => {
    wanted = 0;
    if (inUse()) { refresh(); return; }
    const url = new URL(list().dataset.url, location.href);
    for (const id of unfolded) url.searchParams.append("unfolded", id);
    let putBack;
    if (await redraw("alert-list", url, () => { putBack = keepPlace(); })) drawn(putBack);
  }, SOONEST_MS);
}

/** Returns a function that scrolls the row that the reader uses back to its place. */
function keepPlace() {
  const first = scrollY > 0 && [...list().querySelectorAll(".alert")].find((row) => row.getBoundingClientRect().bottom > 0);
  const at = list().querySelector(".alert:focus-within") ?? list().querySelector(".alert:hover") ?? first;
  if (!at) return () => null;
  const focused = at.contains(document.activeElement) ? document.activeElement.id : "";
  const top = at.getBoundingClientRect().top;
  return () => {
    const row = document.getElementById(at.id);
    if (!row) return;
    // The element with the focus may be gone, for example the button of an alert that was acknowledged meanwhile.
    if (focused) (document.getElementById(focused) ?? row.querySelector("summary")).focus({ preventScroll: true });
    const target = scrollY + row.getBoundingClientRect().top - top;
    // A short page does not scroll far enough: it gets room below its rows, or above them.
    document.body.style.minHeight = `${innerHeight + Math.max(target, 0)}px`;
    if (target < 0) list().style.paddingBlockStart = `${-target}px`;
    scrollTo({ top: target, behavior: "instant" });
  };
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

function drawn(putBack) {
  for (const id of unfolded) unfold(id);
  putBack();
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
