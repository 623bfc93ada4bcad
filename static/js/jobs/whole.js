// A search through the whole stored log, for what the page does not show of it.

import { el, setText } from "../dom.js";
import { bytes } from "../format.js";

const MOST_SHOWN = 500;

/** nodes: {search, button, box, words, lines, more, close}; ask(text, offset) -> answer or null. */
export function startWholeSearch(nodes, ask) {
  const { search, button, box, words, lines, more, close } = nodes;
  let wanted = "";
  let next = 0;
  let found = 0;

  const offer = () => { button.hidden = search.value === ""; };
  search.addEventListener("input", offer);
  offer();

  async function look() {
    const asked = wanted;
    button.disabled = more.disabled = true;
    setText(words, "Searching …");
    const answer = await ask(asked, next);
    button.disabled = more.disabled = false;
    if (asked !== wanted) return;
    if (!answer) { setText(words, "The portal did not answer. Try again."); more.hidden = false; return; }
    for (const hit of answer.hits) {
      const place = el("span", { class: "muted", text: `at ${bytes(hit.offset)}` });
      lines.append(el("li", {}, place, ` ${hit.data}`));
    }
    while (lines.childElementCount > MOST_SHOWN) lines.firstElementChild.remove();
    found += answer.hits.length;
    next = answer.next_offset;
    more.hidden = next === null;
    const looked = next === null ? `all ${bytes(answer.size)}` : `the first ${bytes(next)} of ${bytes(answer.size)}`;
    setText(words, `“${asked}” is in ${found} ${found === 1 ? "line" : "lines"} of ${looked}.`);
  }

  button.addEventListener("click", () => {
    wanted = search.value;
    next = found = 0;
    lines.replaceChildren();
    more.hidden = true;
    box.hidden = false;
    look();
  });
  more.addEventListener("click", look);
  close.addEventListener("click", () => { wanted = ""; box.hidden = true; search.focus(); });
}
