// A search through the whole stored log. The page shows only a part of it.

import { el, setText } from "../dom.js";
import { bytes } from "../format.js";
import { gettext, ngettext } from "../words.js";

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
    setText(words, gettext("Searching …"));
    const answer = await ask(asked, next);
    button.disabled = more.disabled = false;
    if (asked !== wanted) return;
    if (!answer) { setText(words, gettext("The portal did not answer. Try again.")); more.hidden = false; return; }
    for (const hit of answer.hits) {
      const place = el("span", { class: "muted", text: gettext("at {offset}", { offset: bytes(hit.offset) }) });
      lines.append(el("li", {}, place, ` ${hit.data}`));
    }
    while (lines.childElementCount > MOST_SHOWN) lines.firstElementChild.remove();
    found += answer.hits.length;
    next = answer.next_offset;
    more.hidden = next === null;
    const looked = next === null ? gettext("all {size}", { size: bytes(answer.size) }) : gettext("the first {looked} of {size}", { looked: bytes(next), size: bytes(answer.size) });
    setText(words, ngettext("“{asked}” is in {n} line of {looked}.", "“{asked}” is in {n} lines of {looked}.", found, { asked, looked }));
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
