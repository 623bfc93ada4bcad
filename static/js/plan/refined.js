// The refined Estimate on the page. It is requested after a pause in typing, arrives over
// the socket, and is shown as the same three figures as the one in closed form.

import { setText } from "../dom.js";
import { refine } from "./refine.js";
import { gettext } from "../words.js";

const part = document.getElementById("plan-refined");
const at = (name) => document.getElementById(`refined-${name}`);
const STATES = {
  waiting: [gettext("waiting for a worker"), "queued"],
  running: [gettext("running"), "running"],
  done: [gettext("done"), "done"],
  failed: [gettext("not possible"), "failed"],
  cancelled: [gettext("stopped"), "cancelled"],
};
const GIB = 2 ** 30;
let asked = "";
let refining = null;
let closedLikely = 0;

const size = (bytes) => (bytes < GIB / 10 ? `${(bytes / 2 ** 20).toFixed(0)} MiB` : `${(bytes / GIB).toFixed(1)} GiB`);

function showState(word, kind) {
  setText(at("state"), word);
  at("state").className = `state state-${kind}`;
}

function showFigures(interval) {
  at("figures").hidden = !interval;
  if (!interval) return;
  setText(at("low"), size(interval.low_bytes));
  setText(at("likely"), size(interval.likely_bytes));
  setText(at("high"), size(interval.high_bytes));
}

function beside(likely) {
  if (!closedLikely) return "";
  const pct = (100 * (likely - closedLikely)) / closedLikely;
  if (Math.abs(pct) < 1) return gettext(" The estimate above agrees within 1 %.");
  const percent = Math.abs(pct).toFixed(0);
  return pct > 0 ? gettext(" That is {percent} % more than the estimate above.", { percent })
    : gettext(" That is {percent} % less than the estimate above.", { percent });
}

function changed({ state, doing, done_ratio: ratio, answer, interval, problem }) {
  const [word, kind] = STATES[state] ?? [state, "plain"];
  showState(word, kind);
  const open = state === "waiting" || state === "running";
  at("progress").hidden = !open;
  at("progress").value = ratio;
  at("cancel").hidden = !open;
  showFigures(interval);
  if (state === "done" && answer) {
    const took = answer.seconds ? gettext(" in {seconds} s", { seconds: answer.seconds.toFixed(1) }) : "";
    setText(at("words"), gettext("Exact memory of one step (simulated{took}, plus or minus what GPU kernels allocate themselves).{beside}", { took, beside: beside(interval.likely_bytes) }));
    setText(document.getElementById("announcer"), gettext("Exact check: likely {size}.", { size: size(interval.likely_bytes) }));
  } else if (state === "failed") setText(at("words"), problem || gettext("The exact check is not possible for this model. Use the estimate above."));
  else if (state === "cancelled") setText(at("words"), gettext("Stopped. Use the estimate above."));
  else setText(at("words"), doing ? gettext("Now: {doing}.", { doing }) : gettext("Following one step through the model’s code. The estimate above stays until this is done."));
}

function refused(problems) {
  showState(gettext("estimate only"), "plain");
  at("progress").hidden = at("cancel").hidden = true;
  showFigures(null);
  setText(at("words"), Object.entries(problems).map(([field, text]) => (field === "refine" ? text : `${field.replaceAll("_", " ")}: ${text}`)).join("; "));
}

function wish(question) {
  refining ??= refine({ onChange: changed, onRefused: refused });
  showState(gettext("starting"), "queued");
  showFigures(null);
  at("progress").hidden = at("cancel").hidden = true;
  setText(at("words"), gettext("Following one step through the model’s code. The estimate above stays until this is done."));
  refining.ask(question);
}

/** Requests the estimate for the form, if the form has changed. */
export function follow() {
  const node = document.getElementById("plan-question");
  part.hidden = !node;
  if (!node) return;
  const reason = document.getElementById("plan-closed-only").textContent;
  if (asked === node.textContent + reason) return;
  asked = node.textContent + reason;
  closedLikely = Number(document.getElementById("now-likely").dataset.bytes);
  const why = JSON.parse(reason);
  if (why) {
    refining?.cancel();
    refused({ refine: why });
  } else wish(JSON.parse(node.textContent));
}

at("cancel").addEventListener("click", () => refining?.cancel());
