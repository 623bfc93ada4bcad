// Keeps typed text. A form with data-keep is stored for this tab while it
// is being filled in. After a sign-out, an expired page or a lost connection
// the page restores it and shows a message. Passwords and files are never kept.

import { el } from "../dom.js";
import { icon } from "../icons.js";
import { gettext } from "../words.js";

const WAIT_MS = 200;
const INTERRUPTED = "drafts-interrupted";
/** From sending until a page answers whose script runs: an expired page may be left before. */
const SENT = "drafts-sent";
const SKIPPED = ["csrfmiddlewaretoken", "next"];

const keyOf = (form) => `draft:${location.pathname}:${form.id || form.getAttribute("action") || "form"}`;

/** Private browsing may have no storage. The form works without it. */
function store(act) {
  try { return act(sessionStorage); } catch { return null; }
}

const kept = (field) => field.name && !SKIPPED.includes(field.name) && !["password", "file", "submit", "button", "hidden"].includes(field.type);

function read(form) {
  return [...form.elements].filter(kept).map((field) => {
    const ticked = field.type === "checkbox" || field.type === "radio";
    if (field.multiple) return [field.name, [...field.selectedOptions].map((option) => option.value), "many"];
    return [field.name, field.value, ticked ? field.checked : null];
  });
}

function write(form, rows) {
  for (const [name, value, ticked] of rows) {
    const same = [...form.elements].filter((field) => field.name === name && kept(field));
    if (ticked === "many") {
      for (const option of same[0]?.options ?? []) option.selected = value.includes(option.value);
    } else if (ticked === null) {
      if (same.length === 1) same[0].value = value;
    } else {
      const box = same.find((field) => field.value === value);
      if (box) box.checked = ticked;
    }
  }
  for (const field of form.elements) if (kept(field)) field.dispatchEvent(new Event("change", { bubbles: true }));
}

function restore(form, key) {
  const text = store((storage) => storage.getItem(key));
  if (!text) return;
  const before = read(form);
  write(form, JSON.parse(text));
  const drop = el("button", { type: "button", class: "btn btn-s", text: gettext("Discard"), on: { click: () => {
    write(form, before);
    store((storage) => storage.removeItem(key));
    note.remove();
    form.querySelector("input:not([type=hidden]), select, textarea")?.focus();
  } } });
  const note = el("div", { class: "notice notice-good", role: "status" }, icon("undo"),
    el("div", { class: "row grow" }, el("p", { class: "grow", text: gettext("What you typed before is back. It was not sent. Files have to be chosen again.") }), drop));
  form.before(note);
}

function keep(form, interrupted) {
  const key = keyOf(form);
  let timer = null;
  // A form with errors shows the submitted values, which are newer than any draft.
  if (interrupted && !form.querySelector("[aria-invalid=true]")) restore(form, key);
  else store((storage) => storage.removeItem(key));
  const save = () => {
    clearTimeout(timer);
    timer = setTimeout(() => store((storage) => storage.setItem(key, JSON.stringify(read(form)))), WAIT_MS);
  };
  form.addEventListener("input", save);
  form.addEventListener("change", save);
  form.addEventListener("submit", () => {
    clearTimeout(timer);
    store((storage) => storage.setItem(key, JSON.stringify(read(form))));
  });
}

export function startDrafts() {
  // The page for signing in and the page of an expired form may come first.
  if (document.querySelector("[data-interrupted]")) {
    store((storage) => storage.setItem(INTERRUPTED, "1"));
    return;
  }
  const unanswered = store((storage) => storage.getItem(SENT)) === "1";
  store((storage) => storage.removeItem(SENT));
  const forms = document.querySelectorAll("form[data-keep]");
  if (!forms.length) return;
  const interrupted = unanswered || store((storage) => storage.getItem(INTERRUPTED)) === "1";
  store((storage) => storage.removeItem(INTERRUPTED));
  addEventListener("submit", (event) => {
    if (!event.defaultPrevented && event.target.matches("form[data-keep]")) store((storage) => storage.setItem(SENT, "1"));
  });
  for (const form of forms) keep(form, interrupted);
}
