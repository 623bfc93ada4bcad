// The search of the top bar: Ctrl-K ("/" is one of shortcuts.js), then arrows and Enter.

import { el } from "../dom.js";
import { icon } from "../icons.js";
import { gettext } from "../words.js";

const WAIT_MS = 120;
const ICONS = { gpu: "gpu", node: "node", person: "user", job: "job", page: "page", reservation: "calendar" };

class Search {
  constructor(input, list) {
    Object.assign(this, { input, list, at: -1, asked: 0 });
    input.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.ask(), WAIT_MS);
    });
    input.addEventListener("keydown", (event) => this.key(event));
    input.addEventListener("focus", () => { if (input.value) this.ask(); });
    document.addEventListener("pointerdown", (event) => {
      if (!event.target.closest(".search-box")) this.hide();
    });
    input.form.addEventListener("focusout", (event) => {
      if (!input.form.contains(event.relatedTarget)) this.hide();
    });
  }

  async ask() {
    const query = this.input.value.trim();
    const asked = ++this.asked;
    if (!query) { this.hide(); return; }
    const answer = await fetch(`/search?${new URLSearchParams({ q: query })}`, {
      headers: { Accept: "application/json" },
    }).catch(() => null); // the form works without suggestions: Enter opens the page
    if (!answer?.ok || asked !== this.asked) return;
    this.show((await answer.json()).hits);
  }

  show(hits) {
    this.at = -1;
    const options = hits.map((hit, i) =>
      el("a", { class: "menu-item", role: "option", id: `hit-${i}`, href: hit.url, tabindex: "-1", "aria-selected": "false" },
        icon(ICONS[hit.kind]), el("span", { class: "truncate", text: hit.title }),
        el("span", { class: "end truncate", text: hit.detail })));
    if (!options.length) options.push(el("p", { class: "menu-head", role: "option", "aria-disabled": "true", "aria-selected": "false", text: gettext("Nothing found.") }));
    this.list.replaceChildren(...options);
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.input.removeAttribute("aria-activedescendant");
  }

  hide() {
    this.asked++;
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  move(by) {
    const options = [...this.list.querySelectorAll("a")];
    if (!options.length) return;
    options[this.at]?.setAttribute("aria-selected", "false");
    this.at = (this.at + by + options.length + (this.at < 0 && by < 0 ? 1 : 0)) % options.length;
    const option = options[this.at];
    option.setAttribute("aria-selected", "true");
    option.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", option.id);
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && !this.list.hidden) { event.preventDefault(); this.move(by); }
    if (event.key === "Escape") {
      if (this.list.hidden) this.input.blur();
      else { event.preventDefault(); this.hide(); }
    }
    const chosen = this.list.hidden ? null : this.list.querySelectorAll("a")[this.at];
    if (event.key === "Enter" && chosen) { event.preventDefault(); location.assign(chosen.href); }
  }
}

export function startSearch() {
  const input = document.getElementById("search");
  new Search(input, document.getElementById("search-hits"));
  document.addEventListener("keydown", (event) => {
    const command = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k";
    if (!command) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
}
