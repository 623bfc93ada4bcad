// Bars for the used part of a share (1 / level_fs) and for a quota.
import { el } from "../../dom.js";
import { credits } from "../../format.js";
import { figure } from "../words.js";
import { gettext } from "../../words.js";

const HOUR = 3600;
const WIDEST = 2; // doublings to either side of the middle: 1/4 to 4 times the share

/** "1.9×". null means an infinite level_fs: nothing was used yet. */
export function usedWords(levelFs) {
  if (levelFs === null || levelFs === undefined) return "0×";
  if (levelFs <= 0) return gettext("no share");
  const ratio = 1 / levelFs;
  return ratio >= 0.05 ? `${ratio.toFixed(1)}×` : gettext("under 0.1×");
}

/** [left, width] in parts of 1. In the middle the usage equals the share. */
function part(levelFs) {
  const way = levelFs === null ? WIDEST : levelFs <= 0 ? -WIDEST : Math.log2(levelFs);
  const length = (Math.min(Math.abs(way), WIDEST) / WIDEST) / 2;
  return [way < 0 ? 0.5 - length : 0.5, length];
}

/** rows: [[name, level_fs], ...]. One bar for each. */
export function levelRows(rows) {
  return el("dl", { class: "levels" }, ...rows.map(([who, levelFs]) => {
    const [left, width] = part(levelFs ?? null);
    const behind = levelFs !== null && levelFs < 1;
    return el("div", {}, el("dt", { text: who }),
      el("dd", {}, el("span", {
        class: `level-bar${behind ? " is-behind" : ""}`, "aria-hidden": "true",
        vars: { "--from": left, "--part": width },
      }), el("span", { class: "level-words", text: gettext("used {ratio} the share", { ratio: usedWords(levelFs) }) })));
  }));
}

/** Shows the firm bookings of 7 days against the quota. */
export function quotaBar(heldSeconds, quotaSeconds) {
  const most = Math.max(heldSeconds, quotaSeconds, 1);
  return el("div", { class: "quota-bar", "aria-hidden": "true", vars: {
    "--held": heldSeconds / most, "--quota": quotaSeconds / most,
  } }, el("span", { class: "quota-held" }), el("span", { class: "quota-line" }),
  el("span", { class: "quota-words", text: gettext("{held} of {quota}", { held: figure(heldSeconds / HOUR), quota: credits(quotaSeconds / HOUR) }) }));
}
