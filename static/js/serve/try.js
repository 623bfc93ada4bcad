// The form that asks a served model once.

import { csrfToken } from "../api.js";
import { setText } from "../dom.js";

const at = (id) => document.getElementById(id);
const MOST_ELEMENTS = 4096;
const MOST_SHOWN = 20_000;
const first = { BOOL: false, BYTES: "" };

/** A request that the model takes: one row of noughts. */
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
  const words = (list) => list.map((one) => `${one.name} (${one.datatype}, ${one.shape.map((size) => (size < 0 ? "any" : size)).join(" × ") || "one number"})`).join(", ");
  return `Inputs: ${words(model.inputs)}. Outputs: ${words(model.outputs)}.`;
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
    // not JSON: shown as it came
  }
  return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… ${text.length - MOST_SHOWN} characters more` : text;
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
    setText(at("try-status"), "sending …");
    try {
      const { answer, text, took } = await send(page, at("try-model").value, at("try-body").value, at("try-deadline").value.trim());
      const served = answer.headers.get("x-served-ms");
      setText(at("try-status"), `${answer.status} ${answer.ok ? "answered" : "refused"} in ${took.toFixed(1)} ms${served ? `, ${Number(served).toFixed(2)} ms of it in the model` : ""}`);
      at("try-answer").textContent = shown(text);
      at("try-answer").hidden = false;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      setText(at("try-status"), "The portal cannot be reached. What you typed is still here.");
    } finally {
      at("try-send").disabled = false;
    }
  });
}
