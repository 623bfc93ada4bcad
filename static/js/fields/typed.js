// Keeps typed text, unfolded parts and the focus when a part of a page is replaced.
const FIELDS = "input:not([type=hidden]), select, textarea";
const ticks = (field) => ["checkbox", "radio"].includes(field.type);

function changed(field) {
  if (ticks(field)) return field.checked !== field.defaultChecked;
  if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
  const first = [...field.options].findIndex((option) => option.defaultSelected);
  return field.selectedIndex !== Math.max(first, 0);
}

const nameOf = (field) =>
  [field.form?.getAttribute("action"), field.id || field.name, ticks(field) ? field.value : ""].join(" ");

/** Note the state of all below root except in one form; return what puts it into the part that replaces root. */
export function keepTyped(root, form) {
  const fields = [...root.querySelectorAll(FIELDS)].filter((field) => !form?.contains(field));
  const typed = fields.filter(changed).map((field) => ({ name: nameOf(field), value: field.value, checked: field.checked }));
  const folds = [...root.querySelectorAll("details[id]")].map(({ id, open }) => ({ id, open }));
  const active = fields.find((field) => field === document.activeElement);
  const focus = active && { name: nameOf(active), start: active.selectionStart, end: active.selectionEnd };

  return (fresh) => {
    const now = new Map([...fresh.querySelectorAll(FIELDS)].map((field) => [nameOf(field), field]));
    for (const { id, open } of folds) {
      const fold = fresh.querySelector(`details[id="${id}"]`);
      if (fold) fold.open = open;
    }
    for (const { name, value, checked } of typed) {
      const field = now.get(name);
      if (!field) continue;
      if (ticks(field)) field.checked = checked;
      else if (field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value)) field.value = value;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }
    const field = focus && now.get(focus.name);
    if (!field) return;
    field.focus({ preventScroll: true });
    if (focus.start !== null) field.setSelectionRange?.(focus.start, focus.end);
  };
}
