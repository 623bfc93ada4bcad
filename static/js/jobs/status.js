// The changing facts of a Job's page, without log and curves.

import { el, setText } from "../dom.js";
import { icon } from "../icons.js";
import { writeTimes } from "../time.js";
import { stateWord } from "../state_words.js";

const at = (id) => document.getElementById(id);
const moment = (when) => (when ? el("time", { datetime: when, "data-time": "clock" }) : "–");

export function chip(word) {
  return el("span", { class: `state state-${word}` }, icon(word), stateWord(word));
}

function showSteps(steps) {
  at("job-steps").replaceChildren(...steps.map(({ word, at: when, current }) => el("li", {
    class: `step state-${word}${when ? " step-reached" : ""}${current ? " step-current" : ""}`,
    "aria-current": current ? "step" : null,
  }, icon(word), el("span", { class: "step-word", text: stateWord(word) }), el("span", { class: "step-at" }, when ? moment(when) : null))));
}

function showFailure({ failure, last_lines: lines }) {
  at("job-failure").hidden = !failure;
  if (!failure) return;
  setText(at("failure-title"), failure.title);
  at("failure-reason").hidden = !failure.reason;
  setText(at("failure-reason"), failure.reason);
  if (!lines) return;
  at("failure-lines").hidden = lines.length === 0;
  setText(at("failure-lines"), lines.join("\n"));
}

function showEvents(events) {
  at("job-events").replaceChildren(...events.map((event) => el("tr", {},
    el("td", { class: "nowrap" }, moment(event.at)), el("td", {}, chip(event.new)),
    el("td", { text: event.actor }), el("td", { text: event.reason }))));
}

/** Writes a Job's facts into the page. */
export function showJob(job) {
  at("job-state").replaceChildren(chip(job.state));
  showSteps(job.steps);
  setText(at("job-attempt"), job.attempt);
  setText(at("job-exit"), job.exit_code ?? "–");
  at("job-started").replaceChildren(moment(job.started_at));
  at("job-ended").replaceChildren(moment(job.ended_at));
  if (at("job-stop")) at("job-stop").hidden = job.ended_at !== null;
  at("gpu-card").hidden = job.ended_at !== null;
  at("job-waits").hidden = !job.waits;
  if (job.waits) setText(at("job-waits-words"), `${job.waits[0].toUpperCase()}${job.waits.slice(1)}.`);
  at("job-silent").hidden = !job.silent_since;
  if (job.silent_since) at("silent-since").replaceChildren(moment(job.silent_since));
  showFailure(job);
  if (job.events) showEvents(job.events);
  writeTimes();
}
