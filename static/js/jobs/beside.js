// Files beside the script: read here as text, listed, and sent as one JSON field.

import { el } from "../dom.js";
import { gettext } from "../words.js";

const MOST_BYTES = 2 ** 20;
/** Folders that never hold a person's own modules. */
const FOREIGN = ["__pycache__", "node_modules", "site-packages", "venv", "env"];

/** The texts by path that are chosen. */
function chosen(field) {
  try {
    const found = JSON.parse(field.value || "{}");
    return found && typeof found === "object" ? found : {};
  } catch { return {}; }
}

/** The path in the script's folder. A chosen folder is the script's own. */
const pathOf = (file) => file.webkitRelativePath.split("/").slice(1).join("/") || file.name;

const isForeign = (path) => path.split("/").some((part) => part.startsWith(".") || FOREIGN.includes(part));

async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Error(gettext("is larger than 1 MiB"));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch { throw new Error(gettext("is not text")); }
}

export function startBeside(form) {
  const field = form.elements.beside;
  const list = form.querySelector("[data-beside]");
  if (!field || !list) return;

  function show(problems = []) {
    const files = chosen(field);
    list.replaceChildren(
      ...Object.keys(files).sort().map((path) => el("li", { class: "row" }, el("code", { class: "grow", text: path }),
        el("button", { type: "button", class: "btn btn-s", text: gettext("Remove"), "aria-label": `${gettext("Remove")} ${path}`, on: { click: () => {
          delete files[path];
          set(files);
        } } }))),
      ...problems.map(([path, why]) => el("li", { class: "error" }, el("code", { text: path }), ` ${why}`)),
    );
  }

  function set(files, problems) {
    field.value = Object.keys(files).length ? JSON.stringify(files) : "";
    field.dispatchEvent(new Event("input", { bubbles: true }));
    show(problems);
  }

  async function take(input) {
    const files = chosen(field);
    const problems = [];
    for (const file of input.files) {
      const path = pathOf(file);
      if (input.webkitdirectory && (isForeign(path) || !path.endsWith(".py"))) continue;
      try { files[path] = await textOf(file); } catch (error) { problems.push([path, error.message]); }
    }
    input.value = "";
    set(files, problems);
  }

  for (const input of form.querySelectorAll("[data-takes]")) input.addEventListener("change", () => take(input));
  field.addEventListener("change", () => show());
  show();
}
