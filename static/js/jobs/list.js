// The list of Jobs, live: its rows are fetched again when a Job changes state. Bars follow the progress.

import { oneAtATime, redraw } from "../fragment.js";
import { connect } from "../live.js";
import { showProgress } from "./progress.js";

const AGAIN_MS = 1500;
const known = new Map();
let timer = null;
let wasOpen = false;

const opened = () => [...document.querySelectorAll("#job-rows details[open][data-array]")].map((node) => node.dataset.array);

/** Fetches the rows at a bounded rate, also if many Jobs of an array change. */
function again() {
  timer ??= setTimeout(() => {
    timer = null;
    if (document.hidden) { document.addEventListener("visibilitychange", again, { once: true }); return; }
    fetchRows();
  }, AGAIN_MS);
}

function draw(box) {
  const [bar, figure] = [box.querySelector("progress"), box.querySelector("span")];
  const progress = known.get(box.dataset.job);
  if (progress) showProgress({ box, bar, figure }, progress, { short: true });
}

function drawAll() { document.querySelectorAll(".row-progress").forEach(draw); }

/** Reads the progress that the server wrote into the rows. */
function read() {
  for (const box of document.querySelectorAll(".row-progress")) {
    const { done, total, at, left } = box.dataset;
    if (!total) continue;
    known.set(box.dataset.job, { done: Number(done), total: Number(total), at, left_seconds: left ? Number(left) : null });
  }
  drawAll();
}

const boxes = () => document.querySelectorAll("#job-rows [form=compare][name=job]");

/** Fetches the rows. Jobs ticked for comparing stay ticked, open arrays stay open. */
const fetchRows = oneAtATime(async () => {
  let [open, ticked] = [new Set(), new Set()];
  const remember = () => {
    open = new Set(opened());
    ticked = new Set([...boxes()].filter((box) => box.checked).map((box) => box.value));
  };
  if (!(await redraw("job-rows", location.href, remember))) return;
  for (const box of boxes()) box.checked = ticked.has(box.value);
  for (const node of document.querySelectorAll("#job-rows details[data-array]")) node.open = open.has(node.dataset.array);
  read();
});
read();
setInterval(drawAll, 1000);
connect("/ws/jobs/", {
  onJson: (message) => {
    if (message.type === "jobs.changed") again();
    else if (message.type === "job.progress") { known.set(String(message.job), message.progress); drawAll(); }
  },
  // The server did not report what changed while the socket was closed.
  onState: ({ word }) => { if (word === "open") { if (wasOpen) again(); wasOpen = true; } },
});
