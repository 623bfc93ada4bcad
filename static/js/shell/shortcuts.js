// Keyboard shortcuts. A page adds shortcuts:
//   registerShortcuts("Calendar", [{ keys: "t", text: "Go to today", run: () => ... }])
// keys is one key or keys pressed one after the other ("g b"). "?" lists all of them.
// Keys are ignored in fields, with Ctrl, Alt or the command key, and behind
// a modal dialog. They can be switched off in the list (WCAG 2.2, 2.1.4).

import { el } from "../dom.js";
import { gettext } from "../words.js";

const PAUSE_MS = 1200;
const STORE = "shortcuts-off";
const groups = [];
let pending = [];
let timer = null;

export function registerShortcuts(title, shortcuts) {
  const group = { title, shortcuts: shortcuts.map((one) => ({ ...one, keys: one.keys.split(" ") })) };
  groups.push(group);
  return () => { groups.splice(groups.indexOf(group), 1); };
}

export function isTyping(target) {
  return target instanceof Element && target.closest("input:not([type=checkbox], [type=radio], [type=button], [type=submit]), textarea, select, [contenteditable]") !== null;
}

function switchedOff() {
  try { return localStorage.getItem(STORE) === "1"; } catch { return false; }
}

const keysNode = (keys) => el("span", { class: "keys" }, ...keys.flatMap((key, i) =>
  (i ? [gettext(" then "), el("kbd", { text: key })] : [el("kbd", { text: key })])));

/** The shortcuts of this page, as definition lists. */
export function shortcutLists() {
  return groups.map((group) => el("section", { class: "shortcut-group" },
    el("h3", { text: group.title }),
    el("dl", { class: "shortcuts" }, ...group.shortcuts.map((one) =>
      el("div", {}, el("dt", {}, keysNode(one.keys)), el("dd", { text: one.text }))))));
}

export function showShortcuts() {
  document.getElementById("shortcuts")?.remove();
  const box = el("input", { type: "checkbox", checked: !switchedOff(), on: { change: (event) => {
    try { localStorage.setItem(STORE, event.currentTarget.checked ? "" : "1"); } catch { /* private browsing: for this page only */ }
  } } });
  const close = el("button", { type: "button", class: "btn", text: gettext("Close"), on: { click: () => dialog.close() } });
  const dialog = el("dialog", { class: "dialog", id: "shortcuts", "aria-labelledby": "shortcuts-title" },
    el("div", { class: "dialog-body" },
      el("h2", { id: "shortcuts-title", text: gettext("Keyboard shortcuts") }),
      ...shortcutLists(),
      el("label", { class: "check" }, box, el("span", { text: gettext("Use single-key shortcuts in this browser") })),
      el("div", { class: "actions" }, el("a", { class: "btn btn-quiet", href: "/help/", text: gettext("Help") }), close)));
  dialog.addEventListener("close", () => dialog.remove(), { once: true });
  document.body.append(dialog);
  dialog.showModal();
}

function find(keys) {
  const matches = (one) => keys.every((key, i) => one.keys[i] === key);
  // The shortcuts of the page come after the global ones and take precedence.
  const all = groups.flatMap((group) => group.shortcuts).reverse();
  return {
    exact: all.find((one) => one.keys.length === keys.length && matches(one)),
    begins: all.some((one) => one.keys.length > keys.length && matches(one)),
  };
}

function forget() {
  clearTimeout(timer);
  pending = [];
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (isTyping(event.target) || document.querySelector("dialog:modal")) return;
  if (event.key.length !== 1) return;
  if (event.key !== "?" && switchedOff()) return;
  let found = find([...pending, event.key]);
  if (pending.length && !found.exact && !found.begins) {
    pending = [];
    found = find([event.key]);
  }
  clearTimeout(timer);
  if (found.exact) {
    forget();
    event.preventDefault();
    found.exact.run(event);
  } else if (found.begins) {
    pending.push(event.key);
    timer = setTimeout(forget, PAUSE_MS);
  } else forget();
});

document.addEventListener("click", (event) => {
  if (event.target.closest?.("[data-shortcuts]")) showShortcuts();
});

const go = (url) => () => location.assign(url);

/** The shortcuts of every page. */
export function startShortcuts() {
  registerShortcuts(gettext("Everywhere"), [
    { keys: "g b", text: gettext("Board"), run: go("/") },
    { keys: "g c", text: gettext("Calendar"), run: go("/calendar/") },
    { keys: "g m", text: gettext("My reservations"), run: go("/mine/") },
    { keys: "g p", text: gettext("Plan"), run: go("/plan/") },
    { keys: "g j", text: gettext("Jobs"), run: go("/jobs/") },
    { keys: "g s", text: gettext("Standing"), run: go("/standing/") },
    { keys: "g h", text: gettext("Help"), run: go("/help/") },
    { keys: "/", text: gettext("Search"), run: () => {
      const input = document.getElementById("search");
      input?.focus();
      input?.select();
    } },
    { keys: "?", text: gettext("This list"), run: showShortcuts },
  ]);
}
