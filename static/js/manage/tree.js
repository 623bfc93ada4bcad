// The branches of the tree of accounts fold, as in a list of files. Folded branches
// stay folded in this tab. Values in hidden rows are still sent.
import { el } from "../dom.js";
import { icon } from "../icons.js";
import { gettext } from "../words.js";

const KEY = "accounts-folded";

function kept() {
  try { return new Set(JSON.parse(sessionStorage.getItem(KEY) ?? "[]")); } catch { return new Set(); }
}

function keep(folded) {
  try { sessionStorage.setItem(KEY, JSON.stringify([...folded])); } catch { /* no storage: as long as the page */ }
}

function draw(rows, folded) {
  let hiddenBelow = Infinity;
  for (const row of rows) {
    const depth = Number(row.dataset.depth);
    if (depth <= hiddenBelow) hiddenBelow = Infinity;
    row.hidden = depth > hiddenBelow;
    const shut = folded.has(row.dataset.account);
    row.querySelector(".fold")?.setAttribute("aria-expanded", String(!shut));
    if (shut && !row.hidden) hiddenBelow = depth;
  }
}

function foldable(table) {
  const rows = [...table.querySelectorAll("tr[data-depth]")];
  const folded = kept();
  rows.forEach((row, at) => {
    if (!(Number(rows[at + 1]?.dataset.depth) > Number(row.dataset.depth))) return;
    const name = row.dataset.account;
    row.querySelector(".account-cell").prepend(el("button", {
      type: "button", class: "fold", "aria-expanded": "true", "aria-label": gettext("Subgroups of {name}", { name }),
      on: { click: () => {
        if (!folded.delete(name)) folded.add(name);
        keep(folded);
        draw(rows, folded);
      } },
    }, icon("chevron-right")));
  });
  draw(rows, folded);
}

for (const table of document.querySelectorAll("[data-account-tree]")) foldable(table);
