// The list of Jobs, live: its rows are fetched again when one moved, bars follow.

import { connect } from "../live.js";
import { writeTimes } from "../time.js";
import { showProgress } from "./progress.js";

const AGAIN_MS = 1500;
const known = new Map();
let timer = null;
let open = new Set();
let wasOpen = false;

const rows = () => document.getElementById("job-rows");
const opened = () => [...document.querySelectorAll("#job-rows details[open][data-array]")].map((node) => node.dataset.array);

/** At most one question in a while, however many Jobs of an array move. */
function again() {
  timer ??= setTimeout(() => {
    timer = null;
    if (document.hidden) { document.addEventListener("visibilitychange", again, { once: true }); return; }
    open = new Set(opened());
    rows()?.dispatchEvent(new CustomEvent("jobs-again"));
  }, AGAIN_MS);
}

function draw(box) {
  const [bar, figure] = [box.querySelector("progress"), box.querySelector("span")];
  const progress = known.get(box.dataset.job);
  if (progress) showProgress({ box, bar, figure }, progress, { short: true });
}

function drawAll() { document.querySelectorAll(".row-progress").forEach(draw); }

/** What the server said in the rows themselves. */
function read() {
  for (const box of document.querySelectorAll(".row-progress")) {
    const { done, total, at, left } = box.dataset;
    if (!total) continue;
    known.set(box.dataset.job, { done: Number(done), total: Number(total), at, left_seconds: left ? Number(left) : null });
  }
  drawAll();
}

/** Jobs ticked for comparing: kept when the rows are fetched again. */
let ticked = new Set();
const boxes = () => document.querySelectorAll("#job-rows [form=compare][name=job]");
document.body.addEventListener("htmx:beforeSwap", () => {
  ticked = new Set([...boxes()].filter((box) => box.checked).map((box) => box.value));
});
document.body.addEventListener("htmx:afterSettle", () => {
  for (const box of boxes()) box.checked = ticked.has(box.value);
  for (const node of document.querySelectorAll("#job-rows details[data-array]")) node.open = open.has(node.dataset.array);
  read();
  writeTimes();
});
read();
setInterval(drawAll, 1000);
connect("/ws/jobs/", {
  onJson: (message) => {
    if (message.type === "jobs.changed") again();
    else if (message.type === "job.progress") { known.set(String(message.job), message.progress); drawAll(); }
  },
  // What moved while the socket was away was not told.
  onState: ({ word }) => { if (word === "open") { if (wasOpen) again(); wasOpen = true; } },
});
