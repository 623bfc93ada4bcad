// The launch form: only the settings of what is chosen are on the page.

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
    part.hidden = part.dataset.where !== where;
    // What is ticked and not seen is not sent.
    for (const box of part.querySelectorAll("[type=checkbox]")) box.disabled = part.hidden;
  }
}

if (form) {
  form.addEventListener("change", showSettings);
  showSettings();
}
