// Moves of a Job to better GPUs: the proposal with its two buttons, and the log of moves.

import { api } from "../api.js";
import { el, setText } from "../dom.js";
import { writeTimes } from "../time.js";
import { ask, toast, toastProblem } from "../toast.js";
import { gettext } from "../words.js";

const at = (id) => document.getElementById(id);
const moment = (when) => el("time", { datetime: when, "data-time": "clock" });
const jobLink = (id) => el("a", { href: `/jobs/${id}/`, text: gettext("job {number}", { number: id }) });

function who({ automatic, by, state }) {
  if (automatic) return gettext("{state} by the site's policy", { state });
  return by ? gettext("{state} by {who}", { state, who: by }) : state;
}

function row(move, job) {
  const what = el("td", {}, who(move), move.looks > 1 ? el("span", { class: "faint", text: ` × ${move.looks}` }) : null);
  if (move.next_job) what.append(" ", jobLink(move.next_job === job ? move.job : move.next_job));
  return el("tr", {},
    el("td", { class: "nowrap" }, moment(move.seen_at)), what,
    el("td", { text: move.from_gpus.join(", ") }), el("td", { text: move.to_gpus.join(", ") }),
    el("td", { class: "num", text: move.predicted }), el("td", { class: "num", text: move.realised }),
    el("td", { text: move.reason }));
}

/** Writes a Job's moves into the page. A Job without a plan has no moves. */
export function showMoves({ id, moves, proposal }) {
  if (!at("job-moves") || !moves) return;
  at("job-moves").replaceChildren(...moves.map((move) => row(move, id)));
  at("moves-empty").hidden = moves.length > 0;
  at("job-proposal").hidden = !proposal;
  if (proposal) {
    setText(at("proposal-reason"), proposal.reason);
    setText(at("proposal-words"), proposal.words);
    if (at("move-accept")) at("move-accept").disabled = !proposal.can_accept;
    at("job-proposal").dataset.move = proposal.id;
  }
  writeTimes();
}

async function send(path, body, words, refresh) {
  try {
    await api("POST", path, body);
    toast(words);
  } catch (problem) {
    toastProblem(problem);
  }
  await refresh();
}

/** Connects the buttons of the Job's owner. */
export function startMoves(job, refresh) {
  const decide = (act, words) => send(`/jobs/${job.id}/moves/${at("job-proposal").dataset.move}/${act}`, undefined, words, refresh);
  at("move-accept")?.addEventListener("click", async () => {
    const sure = await ask({ title: gettext("Move this job?"), text: `${at("proposal-reason").textContent} ${at("proposal-words").textContent}`, yes: gettext("Stop it here and start it there"), no: gettext("Let it run") });
    if (sure) await decide("accept", gettext("Accepted. The job moves within seconds."));
  });
  at("move-decline")?.addEventListener("click", () => decide("decline", gettext("Declined. The same move is not proposed again for an hour.")));
  at("move-allow")?.addEventListener("change", () => send(`/jobs/${job.id}/moves`, { may_move: at("may-move").checked, restart: at("restart").value }, gettext("Saved."), refresh));
  at("move-allow")?.addEventListener("submit", (event) => event.preventDefault());
}
