// Helpers for plain forms: data-ask asks before a form is sent, data-copy copies
// a field, data-select selects a field when it is entered.

import { ask, toast } from "../toast.js";
import { gettext } from "../words.js";

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.ask || form.answered) return;
  event.preventDefault();
  const { ask: title, askText: text, askYes: yes } = form.dataset;
  if (!(await ask({ title: `${title}?`, text, yes }))) return;
  form.answered = true;
  form.requestSubmit();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const field = document.getElementById(button.dataset.copy);
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    toast(gettext("Copied."), { seconds: 3 });
  } catch {
    toast(gettext("This browser does not let the page copy. The text is selected: press Ctrl-C."));
  }
});

document.addEventListener("focusin", (event) => {
  if (event.target.matches("[data-select]")) event.target.select();
});
