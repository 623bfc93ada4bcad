// The optional job of a request: its fields, and its form for the API.

import { gettext } from "../words.js";

const parts = document.querySelectorAll("[data-job-part]");

/** Converts numbers, true and false, since the API does not accept them as text. */
function valueOf(text) {
  if (["true", "false"].includes(text.toLowerCase())) return text.toLowerCase() === "true";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Parses "steps = 5" lines as settings. The portal refuses a line without "=". */
export function settingsOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf("=");
    return at < 0 ? [line, ""] : [line.slice(0, at).trim(), valueOf(line.slice(at + 1).trim())];
  }));
}

/** The job of the form, or null for a request without a job. */
export function jobOf({ job_runs: runs, job_name: name, job_plan: plan, ...rest }) {
  if (!runs?.value) return null;
  const script = runs.value === "script";
  return {
    name: name.value.trim() || (script ? gettext("own script") : runs.value),
    kind: script ? "script" : "recipe",
    ...(script ? { script: rest.job_script.value } : {
      recipe: runs.value, recipe_settings: settingsOf(rest.job_settings.value),
    }),
    ...(plan?.value ? { plan: Number(plan.value) } : {}),
  };
}

/** Shows the fields of the choice. A plan sets the number of GPUs. */
export function connectJob(form) {
  const { job_runs: runs, job_plan: plan, job_settings: settings, count } = form.elements;
  if (!runs) return;
  const show = () => {
    const kind = runs.value && (runs.value === "script" ? "script" : "recipe");
    for (const part of parts) part.hidden = !kind || ![kind, ""].includes(part.dataset.jobPart);
  };
  runs.addEventListener("change", () => {
    settings.value = runs.selectedOptions[0].dataset.defaults ?? "";
    show();
  });
  plan?.addEventListener("change", () => {
    const { gpus } = plan.selectedOptions[0].dataset;
    if (Number(gpus)) count.value = gpus;
  });
  show();
}
