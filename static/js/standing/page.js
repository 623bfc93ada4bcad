// A choice takes effect at once. Without this script the Show buttons apply it.
for (const id of ["whose", "ledger-filter"]) {
  const form = document.getElementById(id);
  if (!form) continue;
  form.querySelector("button[type=submit]").hidden = true;
  form.addEventListener("change", () => form.requestSubmit());
  // Leave empty choices out of the address.
  form.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (!value) formData.delete(name);
  });
}
