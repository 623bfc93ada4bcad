// The planning form: shows the chosen source only, and sends a file once.

const form = document.getElementById("plan-form");
const upload = document.getElementById("id_upload");

function showSource() {
  const chosen = form.elements.source.value;
  for (const part of form.querySelectorAll("[data-source]")) part.hidden = part.dataset.source !== chosen;
}

form.addEventListener("change", showSource);
showSource();

// The answer to an upload carries the number of the stored model: from then on
// that number travels and not the file.
document.body.addEventListener("htmx:afterSettle", () => {
  if (upload.files.length && form.elements.model.value) upload.value = "";
});
// A file chosen anew replaces the stored model.
upload.addEventListener("change", () => { form.elements.model.value = ""; }, { capture: true });
