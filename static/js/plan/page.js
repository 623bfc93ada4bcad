// The planning form: shows the fields for the choices, sends a file once and only
// its header if that is enough, and keeps the address up to date.

import { setAttr, setText } from "../dom.js";
import { fetchPage, oneAtATime, replace, settled } from "../fragment.js";
import { onMark, showMarks } from "./compare.js";
import { headerOnly } from "./header.js";
import { follow } from "./refined.js";
import { gettext } from "../words.js";

const form = document.getElementById("plan-form");
const upload = document.getElementById("id_upload");
const ESTIMATE_MS = 120;
const PLAN_MS = 350;
const FOLLOWED_MS = 4000;
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

/** Keeps the form in the address, so that it can be reloaded and sent to others. */
function keepAddress() {
  const asked = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (typeof value === "string" && value !== "" && !KEPT_HERE.has(name)) asked.append(name, value);
  }
  history.replaceState(null, "", `?${asked}`);
}

let waiting = 0;
// Counts the changes of the form. A whole answer contains its estimate and
// uses the file too, so a later estimate of the same form is not shown.
let typed = 0;
let planned = -1;
const result = document.getElementById("plan-layout-result");

/** Marks the result as older than the form, before the request. */
const markOld = () => setAttr(result, "aria-busy", "true");

/** A worker follows the model's code: plans again soon, with its figures. */
function planWhenFollowed() {
  if (!document.querySelector("[data-followed-now]")) return;
  clearTimeout(waiting);
  waiting = setTimeout(() => again(), FOLLOWED_MS);
}

/** Sends the form and puts the answer's parts in place. Returns true after an answer.
 *  box: element that is marked as busy meanwhile. id: the part that is shown there.
 *  wanted(): true if the answer is still needed when it arrives. */
async function send(url, data, box, id, wanted = () => true) {
  setAttr(box, "aria-busy", "true");
  const found = await fetchPage(url, { method: "POST", body: data, headers: { "X-Fragment": id } });
  setAttr(box, "aria-busy", null);
  if (!found) {
    setText(document.getElementById("announcer"), gettext("The portal cannot be reached. The result shown is older than what you typed."));
    return false;
  }
  if (!wanted()) return false;
  const { answer, page } = found;
  if (answer.redirected) { location.reload(); return false; }
  // If too many plans are being computed, the answer says so and this page asks again.
  const busy = answer.status === 429;
  if (!answer.ok && !busy) return false;
  if (busy) {
    clearTimeout(waiting);
    waiting = setTimeout(again, (Number(answer.headers.get("Retry-After")) || 10) * 1000);
  }
  replace([...page.body.children]);
  follow();
  planWhenFollowed();
  return true;
}

/** Plans: the whole answer. */
const again = oneAtATime(async () => {
  const asked = typed;
  const answered = await send(form.action, new FormData(form), result, "plan-result");
  if (typed !== asked) markOld();
  if (!answered) return;
  planned = asked;
  // From now on the form sends the number of the stored model instead of the file.
  if (upload.files.length && form.elements.model?.value && !document.getElementById("e-upload").textContent) upload.value = "";
  showParts();
  showErrors();
  showMarks();
  keepAddress();
  const said = document.getElementById("verdict") ?? document.querySelector("#plan-result [role=alert]");
  if (said) setText(document.getElementById("announcer"), said.textContent.trim());
});

/** Estimates on one GPU, while the user types. No file is sent. */
const estimate = oneAtATime(async () => {
  const asked = typed;
  const data = new FormData(form);
  data.delete("upload");
  if (upload.files.length) data.set("uploading", "1");
  if (!(await send(form.dataset.now, data, document.getElementById("plan-one"), "plan-now", () => planned < asked))) return;
  showErrors();
  // The whole answer came first. It has read the file.
  if (document.querySelector("#plan-now [data-working]") && !upload.files.length) estimate();
});

form.addEventListener("input", () => { typed += 1; markOld(); });
form.addEventListener("input", showParts);
form.addEventListener("input", settled(estimate, ESTIMATE_MS));
form.addEventListener("input", settled(again, PLAN_MS));
form.addEventListener("submit", (event) => {
  if (event.submitter?.hasAttribute("formaction")) return;
  event.preventDefault();
  again();
});
// Only the headers of large files are sent. This listener runs before that of the form.
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

// Fields in the answer that belong to the form: plans to compare, the start.
onMark(again);
document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-set-at]");
  if (!button) return;
  form.elements.at.value = button.dataset.setAt;
  form.elements.at.dispatchEvent(new Event("input", { bubbles: true }));
});

// The day and the time are two fields. The date-time field has its value at their change.
form.elements.at.addEventListener("change", ({ target }) => target.dispatchEvent(new Event("input", { bubbles: true })));

showParts();
showErrors();
follow();
planWhenFollowed();
