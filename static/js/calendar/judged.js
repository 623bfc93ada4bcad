// What booking the draft would mean: firm or flex, what it costs, what it leaves, how
// the rank moves, what it displaces, until when and how likely others could take it.
import { el } from "../dom.js";
import { credits } from "../format.js";
import { icon } from "../icons.js";
import { foreignNode } from "./foreign.js";
import { levelRows } from "./level.js";
import { moment, ordinal, span } from "./words.js";
import { toWall } from "./zone.js";

export function judgedNodes(answer, view) {
  const firm = answer.kind === "firm";
  const [title, text] = firm
    ? ["Firm", answer.token ? "Guaranteed by your voucher: nobody can take it from you." : "Nobody can take it from you."]
    : ["Flex", flexWords(answer, view)];
  return [
    el("div", { class: `verdict-kind is-${answer.kind}` }, el("span", { class: "verdict-swatch" }),
      el("p", {}, el("strong", { text: `${title}. ` }), text)),
    el("dl", { class: "verdict-facts" }, ...facts(answer).map(([name, value, mark]) =>
      el("div", {}, el("dt", { text: name }), el("dd", { class: mark ?? null }, value)))),
    answer.foreign_gpu_ids?.length ? foreignNode(answer.foreign_gpu_ids, view.store,
      " If it is still there when you start, you get another GPU or all credits back.") : null,
    answer.displaces?.length ? displacedNode(answer.displaces, view) : null,
    answer.why_not_firm ? el("details", { class: "why-flex" }, el("summary", { text: "Why is it not firm?" }), el("p", { text: answer.why_not_firm })) : null,
  ];
}

function facts(answer) {
  const found = [["Cost", credits(answer.cost_gpu_hours)]];
  if (answer.peak_gpu_hours) found.push(["Of which peak hours", credits(answer.peak_gpu_hours)]);
  const left = answer.quota_left_gpu_hours;
  if (left !== null && left !== undefined) found.push(["Quota left after this", credits(left)]);
  if (answer.rank_before) {
    const [before, after] = [answer.rank_before, answer.rank_after];
    const moved = before === after ? `stays ${ordinal(after)} of ${answer.of}`
      : `${ordinal(before)} → ${ordinal(after)} of ${answer.of}`;
    found.push(["Your rank", moved, after > before ? "is-worse" : null]);
  }
  return found;
}

function flexWords({ taken_until: until, chance }, { config, nowWall }) {
  if (!until) return "Free time beyond your quota. It starts so soon that nobody can take it any more.";
  const when = moment(toWall(until, config.zone), nowWall());
  return `Free time beyond your quota. Until ${when}, someone who has had less GPU time can take it. After that it is yours. ${chance?.text ?? ""}`;
}

/** Whose flex goes, when it was, what they get back, and why they yield. */
function displacedNode(gone, { config, nowWall }) {
  const wall = (at) => toWall(at, config.zone);
  return el("div", { class: "displaced stack tight" },
    el("p", { class: "displaced-title" }, icon("displaced"), el("strong", { text: "This takes over flex time" })),
    ...gone.map((one) => el("div", { class: "displaced-one" },
      el("p", { text: `${one.user ?? one.account}’s flex booking, ${span(wall(one.start), wall(one.end), nowWall())}. They get ${credits(one.gpu_hours)} back and return to the waitlist.` }),
      "own_level_fs" in one ? levelRows([
        [one.of_group ? "Your group, with this booking" : "You, with this booking", one.own_level_fs],
        [one.of_group ? "Their group, without theirs" : "They, without theirs", one.their_level_fs],
      ]) : null)));
}
