// The tour for newcomers: a few steps in a dialog. The server keeps for each user if it was closed.

import { csrfToken } from "../api.js";
import { el } from "../dom.js";
import { gettext } from "../words.js";

const STEPS = [
  [gettext("See what is free"), gettext("The board shows every GPU live: who uses it, how busy it is and until when. Each card has a button to book."), "/", gettext("Board")],
  [gettext("Book GPUs"), gettext("In the calendar, drag over free time or let it find a slot. Within your quota a booking is firm (guaranteed). Beyond it, it is flex (free time that may be taken)."), "/calendar/", gettext("Calendar")],
  [gettext("Use them"), gettext("My reservations shows what runs, what comes next and what to do. Start a job there, extend a booking, or give it back."), "/mine/", gettext("My reservations")],
  [gettext("Does my model fit?"), gettext("Plan tells you how much memory a model needs, on which GPUs it fits, and how fast it would run."), "/plan/", gettext("Plan")],
  [gettext("Every word explained"), gettext("Press an underlined word to see what it means. Press ? for keyboard shortcuts. Everything is on the help page."), "/help/", gettext("Help")],
];

function seen() {
  for (const card of document.querySelectorAll("[data-tour-card]")) card.remove();
  fetch("/me/tour/", { method: "POST", headers: { "X-CSRFToken": csrfToken() } }).catch(() => null); // offered again next time
}

function openTour() {
  let at = 0;
  const title = el("h2", { id: "tour-title", tabindex: "-1" });
  const text = el("p");
  const link = el("a");
  const place = el("p", { class: "small muted" });
  const back = el("button", { type: "button", class: "btn", text: gettext("Back"), on: { click: () => show(at - 1) } });
  const next = el("button", { type: "button", class: "btn btn-primary", on: { click: () => (at === STEPS.length - 1 ? dialog.close() : show(at + 1)) } });
  const close = el("button", { type: "button", class: "btn btn-quiet", text: gettext("Close"), on: { click: () => dialog.close() } });
  const dialog = el("dialog", { class: "dialog", id: "tour", "aria-labelledby": "tour-title" },
    el("div", { class: "dialog-body" }, place, title, text, el("p", {}, link), el("div", { class: "actions" }, close, back, next)));
  const show = (step) => {
    at = step;
    const [head, words, url, name] = STEPS[at];
    title.textContent = head;
    text.textContent = words;
    link.href = url;
    link.textContent = gettext("Go to {name}", { name });
    place.textContent = gettext("Step {step} of {count}", { step: at + 1, count: STEPS.length });
    back.hidden = at === 0;
    next.textContent = at === STEPS.length - 1 ? gettext("Done") : gettext("Next");
    title.focus();
  };
  dialog.addEventListener("close", () => { dialog.remove(); seen(); }, { once: true });
  link.addEventListener("click", seen);
  document.body.append(dialog);
  dialog.showModal();
  show(0);
}

document.addEventListener("click", (event) => {
  if (event.target.closest?.("[data-tour]")) openTour();
  else if (event.target.closest?.("[data-tour-no]")) seen();
});
