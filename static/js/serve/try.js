// The form for one inference by a served model.

import { csrfToken } from "../api.js";
import { setText } from "../dom.js";
import { gettext } from "../words.js";

const at = (id) => document.getElementById(id);
const MOST_ELEMENTS = 4096;
const MOST_SHOWN = 20_000;
const first = { BOOL: false, BYTES: "" };

/** A valid request for the model: one row of zeros. */
export function exampleOf(model) {
  const inputs = model.inputs.map(({ name, datatype, shape }) => {
    const sizes = shape.map((size) => (size < 0 ? 1 : size));
    const count = sizes.reduce((product, size) => product * size, 1);
    const data = count > MOST_ELEMENTS ? [] : Array(count).fill(first[datatype] ?? 0);
    return { name, shape: sizes, datatype, data };
  });
  const lines = inputs.map((one) => `  ${JSON.stringify(one)}`);
  return `{"inputs": [\n${lines.join(",\n")}\n]}`;
}

function takes(model) {
  const words = (list) => list.map((one) => `${one.name} (${one.datatype}, ${one.shape.map((size) => (size < 0 ? gettext("any") : size)).join(" × ") || gettext("one number")})`).join(", ");
  return gettext("Inputs: {inputs}. Outputs: {outputs}.", { inputs: words(model.inputs), outputs: words(model.outputs) });
}

async function send(page, name, body, deadline) {
  const headers = { "Content-Type": "application/json", "X-CSRFToken": csrfToken() };
  if (deadline) headers["X-Deadline-Ms"] = deadline;
  const begun = performance.now();
  const answer = await fetch(`${page.urls.v2}/models/${encodeURIComponent(name)}/infer`, {
    method: "POST", headers, body, credentials: "same-origin",
  });
  const text = await answer.text();
  const took = performance.now() - begun;
  return { answer, text, took };
}

function shown(text) {
  try {
    text = JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    // not JSON: show it unchanged
  }
  return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n${gettext("… {n} characters more", { n: text.length - MOST_SHOWN })}` : text;
}

export function startTry(page) {
  const models = new Map(page.models.map((model) => [model.name, model]));
  const choose = () => {
    const model = models.get(at("try-model").value);
    if (!model) return;
    at("try-body").value = exampleOf(model);
    setText(at("try-takes"), takes(model));
  };
  at("try-model").addEventListener("change", choose);
  choose();
  at("try").addEventListener("submit", async (event) => {
    event.preventDefault();
    at("try-send").disabled = true;
    setText(at("try-status"), gettext("sending …"));
    try {
      const { answer, text, took } = await send(page, at("try-model").value, at("try-body").value, at("try-deadline").value.trim());
      const served = answer.headers.get("x-served-ms");
      setText(at("try-status"), [
      answer.ok ? gettext("{status} answered in {ms} ms", { status: answer.status, ms: took.toFixed(1) })
        : gettext("{status} refused in {ms} ms", { status: answer.status, ms: took.toFixed(1) }),
      served ? gettext("{ms} ms of it in the model", { ms: Number(served).toFixed(2) }) : "",
    ].filter(Boolean).join(", "));
      at("try-answer").textContent = shown(text);
      at("try-answer").hidden = false;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      setText(at("try-status"), gettext("The portal cannot be reached. What you typed is still here."));
    } finally {
      at("try-send").disabled = false;
    }
  });
}
