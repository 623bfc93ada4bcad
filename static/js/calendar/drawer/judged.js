// Effects of booking the draft: firm or flex, cost, remaining quota, change of
// rank, displaced bookings, and until when and how likely others could displace it.
import { el } from "../../dom.js";
import { credits } from "../../format.js";
import { icon } from "../../icons.js";
import { foreignNode } from "../timeline/foreign.js";
import { levelRows } from "./level.js";
import { moment, ordinal, span } from "../words.js";
import { toWall } from "../zone.js";
import { gettext } from "../../words.js";

export function judgedNodes(answer, view) {
  const firm = answer.kind === "firm";
  const [title, text] = firm
    ? [gettext("Firm"), view.byVoucher ? gettext("Guaranteed by your voucher: nobody can take it from you.") : gettext("Nobody can take it from you.")]
    : [gettext("Flex"), flexWords(answer, view)];
  return [
    el("div", { class: `verdict-kind is-${answer.kind}` }, el("span", { class: "verdict-swatch" }),
      el("p", {}, el("strong", { text: `${title}. ` }), text)),
    el("dl", { class: "verdict-facts" }, ...facts(answer).map(([name, value, mark]) =>
      el("div", {}, el("dt", { text: name }), el("dd", { class: mark ?? null }, value)))),
    answer.foreign_gpu_ids?.length ? foreignNode(answer.foreign_gpu_ids, view.store,
      gettext(" If it is still there when you start, you get another GPU or all credits back.")) : null,
    answer.displaces?.length ? displacedNode(answer.displaces, view) : null,
    answer.why_not_firm ? el("details", { class: "why-flex" }, el("summary", { text: gettext("Why is it not firm?") }), el("p", { text: answer.why_not_firm })) : null,
  ];
}

function facts(answer) {
  const found = [[gettext("Cost"), credits(answer.cost_credits)]];
  if (answer.peak_credits) found.push([gettext("Of which peak hours"), credits(answer.peak_credits)]);
  const left = answer.quota_left_credits;
  if (left !== null && left !== undefined) found.push([gettext("Quota left after this"), credits(left)]);
  if (answer.rank_before) {
    const [before, after] = [answer.rank_before, answer.rank_after];
    const moved = before === after ? gettext("stays {rank} of {count}", { rank: ordinal(after), count: answer.of })
      : gettext("{before} → {after} of {count}", { before: ordinal(before), after: ordinal(after), count: answer.of });
    found.push([gettext("Your rank"), moved, after > before ? "is-worse" : null]);
  }
  return found;
}

function flexWords({ taken_until: until, chance }, { config, nowWall }) {
  if (!until) return gettext("Free time beyond your quota. It starts so soon that nobody can take it any more.");
  const when = moment(toWall(until, config.zone), nowWall());
  return gettext("Free time beyond your quota. Until {time}, someone who has had less GPU time can take it. After that it is yours. {chance}", { time: when, chance: chance?.text ?? "" });
}

/** Lists the flex bookings that it displaces: holder, time, refund and reason. */
function displacedNode(gone, { config, nowWall }) {
  const wall = (at) => toWall(at, config.zone);
  return el("div", { class: "displaced stack tight" },
    el("p", { class: "displaced-title" }, icon("displaced"), el("strong", { text: gettext("This takes over flex time") })),
    ...gone.map((one) => el("div", { class: "displaced-one" },
      el("p", { text: gettext("{who}’s flex booking, {span}. They get {credits} back and return to the waitlist.", { who: one.user ?? one.account, span: span(wall(one.start), wall(one.end), nowWall()), credits: credits(one.refund_credits) }) }),
      "own_level_fs" in one ? levelRows([
        [one.of_group ? gettext("Your group, with this booking") : gettext("You, with this booking"), one.own_level_fs],
        [one.of_group ? gettext("Their group, without theirs") : gettext("They, without theirs"), one.their_level_fs],
      ]) : null)));
}
