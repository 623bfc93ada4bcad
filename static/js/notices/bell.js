// The bell of the top bar, kept right while a page is open: the socket says that there
// is news, the server says again what the bell shows.
import { connect } from "../live.js";
import { writeTimes } from "../time.js";
import { tellNotice } from "./told.js";

const SOON_MS = 150;
const SPREAD_MS = 4_000; // alerts are told to everybody: not all ask at once

let timer = 0;
let dueAt = Infinity;

/** Ask for the bell anew within so many milliseconds; the soonest wish counts. */
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
    if (error instanceof TypeError) return; // no network: the next news asks again
    throw error;
  }
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [menu, button] = ["alerts-menu", "bell"].map((id) => document.getElementById(id));
  const [freshMenu, fresh] = ["alerts-menu", "bell"].map((id) => page.getElementById(id));
  if (!fresh || !freshMenu) return;
  button.setAttribute("aria-label", fresh.getAttribute("aria-label"));
  button.replaceChildren(...fresh.childNodes);
  // What somebody walks through by keyboard stays under their feet.
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
      // After a break something may have been told to nobody here.
      if (word === "open" && opened) freshen(Math.random() * SPREAD_MS);
      opened ||= word === "open";
    },
  });
}
