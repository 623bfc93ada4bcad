// The jobs of one reservation on its page, live: the rows of /jobs/?reservation=N.
import { connect } from "../live.js";
import { writeTimes } from "../time.js";
import { gettext } from "../words.js";

const AGAIN_MS = 800;
let timer = null;
let turn = 0;

async function show() {
  const place = document.getElementById("jobs");
  const mine = ++turn;
  const answer = await fetch(`/jobs/?reservation=${place.dataset.reservation}`, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer?.ok || answer.redirected || mine !== turn) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const table = page.querySelector("#job-rows .table-wrap");
  if (!table) return;
  // The boxes choose runs to compare, which only the list of jobs offers.
  for (const box of table.querySelectorAll("input")) (box.closest("label") ?? box).remove();
  table.setAttribute("aria-label", gettext("Jobs of this reservation"));
  // The page may have been fetched again meanwhile. Then another element is in its place.
  document.getElementById("jobs").replaceChildren(document.adoptNode(table));
  writeTimes();
}

const later = () => { timer ??= setTimeout(() => { timer = null; show(); }, AGAIN_MS); };

show();
connect("/ws/jobs/", { onJson: ({ type }) => {
  if (type !== "jobs.changed") return;
  later();
  document.dispatchEvent(new CustomEvent("jobs-changed"));
} });
// reservation.js replaces the middle of the page when the reservation changes.
new MutationObserver((records) => {
  if (records.some(({ addedNodes }) => [...addedNodes].some((node) => node.id === "reservation"))) show();
}).observe(document.getElementById("content"), { childList: true });
