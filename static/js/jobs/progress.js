// Progress of a Job by its log: a bar, a percentage, the time left.

import { setText } from "../dom.js";
import { duration } from "../format.js";
import { serverNow } from "../time.js";
import { gettext } from "../words.js";

const count = (value) => (Number.isInteger(value) ? value : Math.round(value)).toLocaleString("en-GB");

/** "120 of 1,000, 12 %, about 3 min left". The time counts down between messages. */
export function words({ done, total, at, left_seconds: left }, { ended, short }) {
  const part = `${Math.floor((100 * done) / total)} %`;
  const said = short ? part : gettext("{done} of {total}, {part}", { done: count(done), total: count(total), part });
  if (ended || left === null || done >= total) return said;
  const passed = (serverNow() - Date.parse(at)) / 1000;
  return short
    ? gettext("{said}, {time} left", { said, time: duration(Math.max(1, left - passed)) })
    : gettext("{said}, about {time} left", { said, time: duration(Math.max(1, left - passed)) });
}

/** Writes progress into a bar, its percentage and their box. null hides the box. */
export function showProgress({ box, bar, figure }, progress, { ended = false, short = false } = {}) {
  box.hidden = !progress;
  if (!progress) return;
  bar.max = progress.total;
  bar.value = progress.done;
  setText(figure, words(progress, { ended, short }));
}
