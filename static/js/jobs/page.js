// The page of one Job: its socket feeds the state, the log and the curves.

import { api } from "../api.js";
import { el, pageData, setText } from "../dom.js";
import { icon } from "../icons.js";
import { connect } from "../live.js";
import { writeTimes } from "../time.js";
import { ask, toast, toastProblem } from "../toast.js";
import { Charts, numbersOf } from "./charts.js";
import { TimeLeft } from "./clock.js";
import { startGpus } from "./gpus.js";
import { LogView } from "./log.js";
import { startTabs } from "./tabs.js";

const page = pageData("job-page");
const at = (id) => document.getElementById(id);
const FIRST_TAIL_BYTES = 128 * 1024;

async function fetchRange(offset, length) {
  const answer = await fetch(`${page.log_url}?offset=${offset}&length=${length}`, { credentials: "same-origin" });
  if (!answer.ok) return null;
  return answer.json();
}

const charts = new Charts(at("charts"), at("charts-empty"));
const log = new LogView({
  log: at("log"), follow: at("log-follow"), wrap: at("log-wrap"), search: at("log-search"),
  found: at("log-found"), size: at("log-size"), skip: at("log-skip"), empty: at("log-empty"),
}, fetchRange, (line) => {
  const numbers = numbersOf(line);
  if (numbers) charts.add(numbers);
});
const timeLeft = new TimeLeft({ fill: at("ring-fill"), figure: at("left-figure"), words: at("left-words") });
startTabs(document.querySelector("[role=tablist]"), () => charts.fit());
startGpus(at("job-gpus"), at("gpu-live"), page.gpus);

let shownState = page.job.state;

function chip(word) {
  return el("span", { class: `state state-${word}` }, icon(word), word);
}

function showSteps(job) {
  const rows = job.steps.map(({ word, at: when, current }) => el("li",
    { class: `step state-${word}${when ? " step-reached" : ""}${current ? " step-current" : ""}`, "aria-current": current ? "step" : null },
    icon(word), el("span", { class: "step-word", text: word }),
    el("span", { class: "step-at" }, when ? el("time", { datetime: when, "data-time": "clock" }) : null)));
  at("job-steps").replaceChildren(...rows);
}

function show(job) {
  timeLeft.show(job);
  if (job.state === shownState && job.ended_at === page.job.ended_at) return;
  page.job = job;
  shownState = job.state;
  at("job-state").replaceChildren(chip(job.state));
  showSteps(job);
  setText(at("job-attempt"), job.attempt);
  setText(at("job-exit"), job.exit_code ?? "–");
  at("job-ended").replaceChildren(job.ended_at ? el("time", { datetime: job.ended_at, "data-time": "clock" }) : "–");
  const stop = at("job-stop");
  if (stop) stop.hidden = job.ended_at !== null;
  showFailure(job);
  setText(at("announcer"), `Job ${job.state}. ${job.reason}`);
  writeTimes();
  if (job.events) showEvents(job.events);
}

function showFailure(job) {
  const failed = job.state === "failed" || job.state === "lost";
  at("job-failure").hidden = !failed;
  if (!failed) return;
  setText(at("failure-title"), job.exit_code === null ? job.reason || "The job failed" : `Exit code ${job.exit_code}`);
  setText(at("failure-reason"), job.reason);
  if (job.last_lines) setText(at("failure-lines"), job.last_lines.join("\n"));
}

function showEvents(events) {
  at("job-events").replaceChildren(...events.map((event) => el("tr", {},
    el("td", { class: "nowrap" }, el("time", { datetime: event.at, "data-time": "clock" })),
    el("td", {}, chip(event.new)), el("td", { text: event.actor }), el("td", { text: event.reason }))));
  writeTimes();
}

at("job-stop")?.addEventListener("click", async () => {
  const sure = await ask({ title: `Stop “${page.job.name}”?`, text: "It gets TERM, then KILL after the grace. What it has written is kept.", yes: "Stop the job", no: "Let it run" });
  if (!sure) return;
  try {
    show(await api("POST", `/jobs/${page.job.id}/stop`));
    toast("The job is told to stop.");
  } catch (problem) {
    toastProblem(problem);
  }
});

async function refresh() {
  try {
    const answer = await fetch(page.state_url, { credentials: "same-origin" });
    if (answer.ok) show(await answer.json());
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // unreachable: the socket says so
  }
}

async function firstTail() {
  const numbers = await fetch(page.numbers_url, { credentials: "same-origin" });
  if (numbers.ok) for (const row of (await numbers.json()).rows) charts.add(row);
  if (!page.log_size) return;
  const from = Math.max(0, page.log_size - FIRST_TAIL_BYTES);
  const piece = await fetchRange(from, page.log_size - from);
  if (!piece) return;
  log.end = piece.offset;
  log.skip(piece.offset);
  await log.take(piece);
}

timeLeft.show(page.job);
await firstTail();
connect(`/ws/jobs/${page.job.id}/`, {
  onJson: (message) => {
    if (message.type === "job.log") log.take(message);
    if (message.type === "job.changed") refresh();
  },
  onState: ({ word }) => { if (word === "open") refresh(); },
});
