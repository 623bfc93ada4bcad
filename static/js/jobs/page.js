// The page of one Job: its socket feeds the state, the log and the curves.

import { api } from "../api.js";
import { pageData, setText } from "../dom.js";
import { bytes } from "../format.js";
import { oneAtATime, redraw, settled } from "../fragment.js";
import { connect } from "../live.js";
import { ask, toast, toastProblem } from "../toast.js";
import { Charts, numbersOf } from "./charts.js";
import { TimeLeft } from "./clock.js";
import { startGpus } from "./gpus.js";
import { LogStream } from "./log.js";
import { showMoves, startMoves } from "./moves.js";
import { startParts } from "./parts.js";
import { showProgress } from "./progress.js";
import { LogRows } from "./rows.js";
import { showJob } from "./status.js";
import { startTabs } from "./tabs.js";
import { startWholeSearch } from "./whole.js";
import { gettext } from "../words.js";
import { stateWord } from "../state_words.js";

const FIRST_TAIL_BYTES = 64 * 1024;
const GPU_CHART_MS = 60_000;
const GAP_MS = 2000;
const READ_ON_MS = 1000;
// After the Job's end its results arrive and its plan is compared.
const SETTLES_MS = 600_000;
// Between two requests for a log that the node has not uploaded yet.
const LOG_ARRIVES_MS = 2000;
const page = pageData("job-page");
const at = (id) => document.getElementById(id);
let job = page.job;

/** The answer's JSON, or null if the portal refuses or does not answer. */
async function json(address) {
  try {
    const answer = await fetch(address, { credentials: "same-origin" });
    return answer.ok ? await answer.json() : null;
  } catch (error) {
    if (error instanceof TypeError) return null; // unreachable: the socket's banner says so
    throw error;
  }
}

const fetchRange = (offset, length) => json(`${page.urls.log}?offset=${offset}&length=${length}&part=${page.log_part}`);
const charts = new Charts(at("charts"), at("charts-empty"), {
  box: at("chart-tools"), smooth: at("chart-smooth"), log: at("chart-log"), reset: at("chart-reset"),
});
const rows = new LogRows({
  log: at("log"), follow: at("log-follow"), wrap: at("log-wrap"), search: at("log-search"),
  found: at("log-found"), empty: at("log-empty"), raw: at("log-raw"),
});
const log = new LogStream({ rows, skip: at("log-skip"), size: at("log-size") }, fetchRange, (line) => {
  const numbers = numbersOf(line);
  if (numbers) charts.add(numbers);
});
startWholeSearch({
  search: at("log-search"), button: at("log-whole"), box: at("log-hits"), words: at("log-hits-words"),
  lines: at("log-hits-lines"), more: at("log-hits-more"), close: at("log-hits-close"),
}, (text, offset) => json(`/api/v1/jobs/${job.id}/log/search?${new URLSearchParams({ q: text, offset, part: page.log_part })}`));
const timeLeft = new TimeLeft({ fill: at("ring-fill"), figure: at("left-figure"), words: at("left-words") });
let gpus = null;

async function showGpuCharts() {
  const answer = await json(page.urls.gpus);
  if (answer) charts.showGpus(answer);
}

const parts = startParts(() => !job.ended_at || Date.now() - Date.parse(job.ended_at) < SETTLES_MS);
const progress = { box: at("job-progress"), bar: at("progress-bar"), figure: at("progress-words") };
// The portal decides within a moment if the Job continues in another gap.
const drawGap = settled(() => redraw("job-gap", location.href), GAP_MS);
const drawProgress = () => showProgress(progress, job.state === "done" ? null : job.progress, { ended: Boolean(job.ended_at) });
setInterval(drawProgress, 1000);

let chartsSeen = false;
function tabShown(id) {
  parts.tabShown(id);
  if (id !== "tab-charts") return;
  charts.fit();
  if (!chartsSeen) {
    chartsSeen = true;
    showGpuCharts();
    setInterval(() => { if (!job.ended_at && !document.hidden && !at("panel-charts").hidden) showGpuCharts(); }, GPU_CHART_MS);
  }
}

function show(fresh) {
  const moved = fresh.state !== job.state;
  if (fresh.attempt !== job.attempt && job.attempt > 0) log.reset();
  job = fresh;
  timeLeft.show(job);
  showJob(job);
  showMoves(job);
  drawProgress();
  if (moved || job.ended_at) parts.moved();
  if (moved) drawGap();
  if (job.ended_at && gpus) { gpus.close(); gpus = null; }
  if (moved) setText(at("announcer"), gettext("Job {state}. {reason}", { state: stateWord(job.state), reason: job.reason }));
}

// One request after the other, so that an older answer never comes last.
const refresh = oneAtATime(async () => {
  const fresh = await json(`${page.urls.state}?part=${page.log_part}`);
  if (!fresh) return;
  show(fresh);
  await showStored(fresh.log);
});
const refreshLater = settled(refresh, LOG_ARRIVES_MS);

/** Shows the log of an ended Job when the node has uploaded it. Until then, the panel says why it is empty. */
async function showStored({ bytes: size, is_awaited, empty_words }) {
  setText(rows.nodes.empty, empty_words);
  if (is_awaited) refreshLater();
  if (!job.ended_at || !size) return;
  if (log.end) {
    if (size <= log.end) return;
    await log.take({ offset: size, bytes: 0, data: "" });
    readOn();
    return;
  }
  page.log_size = size;
  at("log-last")?.remove();
  await firstTail();
  readOn();
}

at("job-stop")?.addEventListener("click", async () => {
  const sure = await ask({ title: gettext("Stop “{name}”?", { name: job.name }), text: gettext("It gets SIGTERM, and SIGKILL after {seconds} s. Output so far is kept.{more}", { seconds: page.grace_seconds, more: page.in_gaps ? gettext(" It is not started again.") : "" }), yes: gettext("Stop the job"), no: gettext("Keep running") });
  if (!sure) return;
  try {
    await api("POST", `/jobs/${job.id}/stop`);
    toast(gettext("The job is stopping."));
    await refresh();
  } catch (problem) {
    toastProblem(problem);
  }
});

/** Draws the numbers of the log so far. Returns how many bytes are not read yet. */
async function readNumbers() {
  const answer = await json(page.urls.numbers);
  if (answer) charts.merge(answer.rows);
  const lost = Object.entries(answer?.not_finite ?? {});
  at("charts-not-finite").hidden = !lost.length;
  setText(at("charts-not-finite-text"), lost.map(([name, step]) => gettext("{name} is NaN or infinite, first at step {step}.", { name, step })).join(" "));
  const left = answer?.left_bytes ?? 0;
  at("charts-left").hidden = !left;
  setText(at("charts-left"), left ? gettext("The curves so far. The portal still reads {size} of the log.", { size: bytes(left) }) : "");
  return left;
}

/** Asks until the whole log is read: each request reads a part. */
async function readOn() {
  while (await readNumbers()) await new Promise((resolve) => { setTimeout(resolve, READ_ON_MS); });
}

async function firstTail() {
  const from = Math.max(0, page.log_size - FIRST_TAIL_BYTES);
  const piece = page.log_size ? await fetchRange(from, page.log_size - from) : null;
  if (!piece) return;
  log.skip(piece.offset);
  log.end = piece.offset;
  await log.take(piece);
}

startTabs(document.querySelector("[role=tablist]"), tabShown);
timeLeft.show(job);
showJob(job);
showMoves(job);
startMoves(job, refresh);
drawProgress();
if (!job.ended_at) gpus = startGpus(at("job-gpus"), at("gpu-live"), page.gpus);
if (await readNumbers()) setTimeout(readOn, READ_ON_MS);
await firstTail();
connect(`/ws/jobs/${job.id}/`, {
  onJson: (message) => {
    if (message.type === "job.progress") { job.progress = message.progress; drawProgress(); return; }
    if (message.type !== "job.log" || message.attempt > job.attempt) refresh();
    else if (message.attempt === job.attempt && message.part === page.log_part) log.take(message);
  },
  onState: ({ word }) => { if (word === "open") refresh(); },
});
