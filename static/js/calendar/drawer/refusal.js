// A refusal in the drawer: the rule, its numbers, both sides' use of their share,
// the next slot that works, the part that fits, and alternatives (a voucher, waiting).
import { el } from "../../dom.js";
import { credits, duration } from "../../format.js";
import { icon } from "../../icons.js";
import { serverNow } from "../../time.js";
import { gettext } from "../../words.js";
import { levelRows, quotaBar } from "./level.js";
import { gpuWords, moment, span } from "../words.js";
import { toWall, wallSeconds } from "../zone.js";

const HOUR = 3600;
/** Codes of refusals that a voucher avoids. It lifts the horizons only. */
const FAR = ["beyond-horizon", "struck-horizon"];
/** Codes of refusals for which waiting can help: the GPU is held, or a limit is reached for now. */
const WAITABLE = [
  "gpu-taken", "flex-held", "planned-for", "quota-exceeded", "group-quota-exceeded",
  "person-quota-exceeded", "pool-quota-exceeded", "too-many-flex", "closed-then",
];

/** view: {config, store, nowWall, take(slot), fit(part), useVoucher, wait}; fit, useVoucher and
 *  wait may be null. */
export function refusalNodes(refusal, next, view, fewer = null) {
  const { code = "", title, detail, numbers = {} } = refusal;
  const text = detail ?? gettext("This cannot be booked.");
  const until = refusal.longest_end;
  return [el("div", { class: "notice notice-bad refusal", "data-code": code }, icon("alert"),
    el("div", { class: "stack tight grow" },
      el("p", {}, title ? el("strong", { text: `${title}. ` }) : null, text),
      ...numberNodes(numbers, view), ...ways(code, { next, fewer, until }, numbers, view)))];
}

function ways(code, { next, fewer, until }, numbers, view) {
  const found = [];
  const fits = fitting(numbers, view);
  if (fits) found.push(fits);
  if (fewer) found.push(fewerButton(fewer, view));
  if (until) found.push(untilButton(until, view));
  if (next) found.push(nextButton(next, view));
  if (FAR.includes(code) && view.useVoucher) {
    found.push(el("button", {
      type: "button", class: "btn btn-s", "data-voucher": true, on: { click: view.useVoucher },
    }, icon("key"), gettext("Use a voucher")));
  }
  if (WAITABLE.includes(code) && view.wait) {
    found.push(el("button", {
      type: "button", class: "btn btn-s", "data-wait": true, on: { click: view.wait },
    }, icon("clock"), gettext("Join the waitlist instead")));
  }
  return found.length ? [el("div", { class: "row ways" }, ...found)] : [];
}

/** Returns a button that shortens the draft to the rest of the quota. null if nothing is left. */
function fitting({ fits_gpu_seconds: fits, asked_gpu_seconds: asked }, { fit }) {
  const slot = fits && asked && fit?.(fits / asked);
  return slot ? el("button", {
    type: "button", class: "btn btn-s", "data-fits": true, text: gettext("Take the {time} that fit", { time: duration(slot.seconds) }),
    on: { click: slot.take },
  }) : null;
}

/** Shows the numbers that the rule compared, if the refusal has them. */
function numberNodes(numbers, { config, nowWall }) {
  const wall = (at) => moment(toWall(at, config.zone), nowWall());
  const facts = [];
  const nodes = [];
  const { would_hold_gpu_seconds: held, quota_gpu_seconds: quota } = numbers;
  if (held !== undefined && quota !== undefined) nodes.push(quotaBar(held, quota));
  if (numbers.fits_gpu_seconds !== undefined) {
    facts.push([gettext("Fits as firm"), credits(numbers.fits_gpu_seconds / HOUR)]);
  }
  const from = numbers.flex_from;
  if (numbers.latest) facts.push([gettext("Latest start"), wall(numbers.latest)]);
  if (numbers.live !== undefined && numbers.most !== undefined) {
    facts.push([gettext("You have"), el("a", { href: "/mine/", text: gettext("{live} of {most} bookings", { live: numbers.live, most: numbers.most }) })]);
  }
  if ("own_level_fs" in numbers && "their_level_fs" in numbers) {
    nodes.push(levelRows([
      [gettext("You, with this booking"), numbers.own_level_fs],
      [gettext("They, without theirs"), numbers.their_level_fs],
    ]));
  }
  if (from && new Date(from) > new Date(serverNow())) {
    nodes.push(el("p", { text: gettext("From {time} on you can book it as flex (free time that may be taken).", { time: wall(from) }) }));
  }
  if (facts.length) {
    nodes.push(el("dl", { class: "verdict-facts" }, ...facts.map(([name, value]) =>
      el("div", {}, el("dt", { text: name }), el("dd", {}, value)))));
  }
  return nodes;
}

/** Returns a button that keeps the time and reduces the GPUs to the allowed number. */
function fewerButton(fewer, { store, take }) {
  const gpus = fewer.gpu_ids.map((id) => store.gpu(id)).filter(Boolean);
  return el("button", {
    type: "button", class: "btn btn-s", "data-fewer": true, text: gettext("Take {n} of them", { n: fewer.gpu_ids.length }), title: gpuWords(gpus),
    on: { click: () => { take({ gpuIds: fewer.gpu_ids }); document.getElementById("book").focus(); } },
  });
}

/** Returns a button that gives a running booking the latest end that works. */
function untilButton(until, { config, nowWall, take }) {
  const end = toWall(until, config.zone);
  return el("button", {
    type: "button", class: "btn btn-s", "data-until": true, text: gettext("Extend to {time}", { time: moment(end, nowWall()) }),
    on: { click: () => { take({ end }); document.getElementById("book").focus(); } },
  });
}

function nextButton(next, { config, store, nowWall, take }) {
  const gpus = next.gpu_ids.map((id) => store.gpu(id)).filter(Boolean);
  const [start, end] = [next.start, next.end].map((at) => toWall(at, config.zone));
  const words = gpus.length
      ? gettext("{span} on {gpus}", { span: span(start, end, nowWall()), gpus: gpuWords(gpus) }) : span(start, end, nowWall());
  return el("button", {
    type: "button", class: "btn btn-s next-slot", text: gettext("Take {slot}", { slot: words }),
    title: duration(wallSeconds(start, end)),
    on: { click: () => take({ gpuIds: next.gpu_ids, start, end }) },
  });
}
