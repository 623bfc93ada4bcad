// The form of a closure shows the fields that its kind and place ask for.
const form = document.querySelector("[data-closure-form]");

function show(name, on) {
  const field = form.querySelector(`[data-field="${name}"]`);
  if (field) field.hidden = !on;
}

function follow() {
  const scope = form.elements.scope.value;
  show("account", form.elements.kind.value === "teaching");
  show("node", scope === "node");
  show("pool", scope === "pool");
  show("gpus", scope === "gpus");
  const picks = form.querySelector("details");
  if (picks && scope === "gpus") picks.open = true;
  // The value of a hidden field is ignored.
  if (form.elements.kind.value !== "teaching") form.elements.account.value = "";
}

if (form) {
  form.elements.kind.addEventListener("change", follow);
  form.elements.scope.addEventListener("change", follow);
  follow();
}
