// Choosing takes effect at once; without this script the Show buttons do it.
for (const id of ["whose", "ledger-filter"]) {
  const form = document.getElementById(id);
  if (!form) continue;
  form.querySelector("button[type=submit]").hidden = true;
  form.addEventListener("change", () => form.requestSubmit());
  // An empty choice stays out of the address.
  form.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (!value) formData.delete(name);
  });
}
