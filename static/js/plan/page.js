// The planning form: shows what belongs to the choices, sends a file once and only
// its header where that is enough, keeps the address in step with what is planned.

import { setText } from "../dom.js";
import { onMark, showMarks } from "./compare.js";
import { headerOnly } from "./header.js";
import { follow } from "./refined.js";
import { gettext } from "../words.js";

const form = document.getElementById("plan-form");
const upload = document.getElementById("id_upload");
const KEPT_HERE = new Set(["csrfmiddlewaretoken", "upload"]);

function showParts() {
  const { source, task, reservation } = form.elements;
  const hide = (name, wanted) => {
    for (const part of form.querySelectorAll(`[data-${name}]`)) part.hidden = !wanted(part.dataset[name]);
  };
  hide("source", (value) => value === source.value);
  hide("task", (value) => value === task.value);
  hide("window", () => !reservation?.value);
}

function showErrors() {
  for (const said of form.querySelectorAll(".error")) {
    const input = form.elements[said.id.replace("e-", "")];
    if (!(input instanceof HTMLElement)) continue;
    if (said.textContent) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
}

/** What is planned can be reloaded, bookmarked and sent to somebody. */
function keepAddress() {
  const asked = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (typeof value === "string" && value !== "" && !KEPT_HERE.has(name)) asked.append(name, value);
  }
  history.replaceState(null, "", `?${asked}`);
}

let waiting = 0;
const again = () => form.dispatchEvent(new CustomEvent("plan-again"));

form.addEventListener("input", showParts);
form.addEventListener("submit", (event) => {
  if (event.submitter?.hasAttribute("formaction")) return;
  event.preventDefault();
  again();
});
// Before htmx hears of it: files of many GB go out as their headers alone.
const isLong = (file) => file.size > 2 ** 20 && file.name.toLowerCase().endsWith(".safetensors");
upload.addEventListener("input", async (event) => {
  const files = [...upload.files];
  if (!files.some(isLong)) return;
  event.stopPropagation();
  const holder = new DataTransfer();
  for (const file of files) holder.items.add((isLong(file) && (await headerOnly(file))) || file);
  upload.files = holder.files;
  again();
});
document.body.addEventListener("htmx:configRequest", ({ detail }) => {
  if (detail.elt.id === "plan-now" && upload.files.length) detail.parameters.uploading = "1";
});
document.body.addEventListener("htmx:afterSettle", ({ detail }) => {
  follow();
  // An answer that was overtaken by the whole one: the file has been read meanwhile.
  const waiting = document.querySelector("#plan-now [data-working]");
  if (waiting && !upload.files.length) waiting.parentElement.dispatchEvent(new CustomEvent("plan-now-again"));
  if (detail.target?.id === "plan-now") {
    showErrors();
    return;
  }
  // From now on the number of the stored model travels, and not the file.
  if (upload.files.length && form.elements.model?.value && !document.getElementById("e-upload").textContent) upload.value = "";
  showParts();
  showErrors();
  showMarks();
  keepAddress();
  const said = document.getElementById("verdict") ?? document.querySelector("#plan-result [role=alert]");
  if (said) setText(document.getElementById("announcer"), said.textContent.trim());
});
// Too many plans are being worked out: the answer says so, and this page asks again.
document.body.addEventListener("htmx:beforeSwap", ({ detail }) => {
  if (detail.xhr.status !== 429) return;
  detail.shouldSwap = true;
  detail.isError = false;
  const seconds = Number(detail.xhr.getResponseHeader("Retry-After")) || 10;
  clearTimeout(waiting);
  waiting = setTimeout(again, seconds * 1000);
});
document.body.addEventListener("htmx:sendError", () => {
  setText(document.getElementById("announcer"), gettext("The portal cannot be reached. The result shown is older than what you typed."));
});

// What stands in the answer and belongs to the question: what to compare, when to start.
onMark(again);
document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-set-at]");
  if (!button) return;
  form.elements.at.value = button.dataset.setAt;
  form.elements.at.dispatchEvent(new Event("input", { bubbles: true }));
});

// The day and the time are two fields; what they make up is known at their change.
form.elements.at.addEventListener("change", ({ target }) => target.dispatchEvent(new Event("input", { bubbles: true })));

showParts();
showErrors();
follow();
