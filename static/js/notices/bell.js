// The bell of the top bar, kept up to date: the socket reports a
// change, and the page fetches the bell again.
import { connect } from "../live.js";
import { writeTimes } from "../time.js";
import { tellNotice } from "./told.js";

const SOON_MS = 150;
const SPREAD_MS = 4_000; // alerts reach all pages, which then fetch at different times

let timer = 0;
let dueAt = Infinity;

/** Fetch the bell again within a number of milliseconds. The earliest request counts. */
export function freshen(withinMs = SOON_MS) {
  const at = performance.now() + withinMs;
  if (at >= dueAt) return;
  dueAt = at;
  clearTimeout(timer);
  timer = setTimeout(fetchBell, withinMs);
}

async function fetchBell() {
  dueAt = Infinity;
  let answer;
  try {
    answer = await fetch("/bell", { redirect: "manual" });
  } catch (error) {
    if (error instanceof TypeError) return; // no network: the next change fetches again
    throw error;
  }
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [menu, button] = ["alerts-menu", "bell"].map((id) => document.getElementById(id));
  const [freshMenu, fresh] = ["alerts-menu", "bell"].map((id) => page.getElementById(id));
  if (!fresh || !freshMenu) return;
  button.setAttribute("aria-label", fresh.getAttribute("aria-label"));
  button.replaceChildren(...fresh.childNodes);
  // Keep the list while the keyboard focus is in it.
  if (!menu.contains(document.activeElement)) menu.replaceChildren(...freshMenu.childNodes);
  writeTimes();
}

export function startBell() {
  let opened = false;
  connect("/ws/alerts/", {
    quiet: true,
    onJson: ({ type, notice }) => {
      if (type === "notice.told") { tellNotice(notice); freshen(); }
      if (type === "alerts.changed") freshen(SOON_MS + Math.random() * SPREAD_MS);
    },
    onState: ({ word }) => {
      // This page may have missed changes while the socket was closed.
      if (word === "open" && opened) freshen(Math.random() * SPREAD_MS);
      opened ||= word === "open";
    },
  });
}
