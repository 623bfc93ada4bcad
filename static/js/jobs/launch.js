// The launch form: shows only the settings of the chosen recipe.

import { startBeside } from "./beside.js";

const form = document.getElementById("launch");

function showSettings() {
  const chosen = form.elements.what.value;
  for (const part of form.querySelectorAll("[data-settings]")) {
    part.hidden = part.dataset.settings !== chosen;
  }
  const script = form.querySelector("[data-settings=script]");
  if (!script.hidden) script.open = true;
  const where = form.elements.where.value;
  for (const part of form.querySelectorAll("[data-where]")) {
    // Another recipe cannot continue from a checkpoint of this one.
    const other = "what" in part.dataset && part.dataset.what !== chosen;
    part.hidden = part.dataset.where !== where || other;
    // Hidden boxes are not sent.
    for (const box of part.querySelectorAll("[type=checkbox]")) box.disabled = part.hidden;
  }
}

if (form) {
  form.addEventListener("change", showSettings);
  startBeside(form);
  showSettings();
}
