// A Problem of the API in the words of the page. The API's names of fields are for programs.
import { gettext } from "../../words.js";

const NAMES = {
  start: gettext("Start"), end: "End", gpu_ids: gettext("GPUs"), purpose: gettext("What for"), membership: gettext("Charged to"),
  count: gettext("GPUs"), hours: gettext("Hours"), min_memory_gib: gettext("Memory"), earliest: gettext("Not before"), latest: gettext("Done by"),
  message: gettext("Message"), reason: gettext("Reason"), user: gettext("Person"),
};

/** "What for: At most 120 characters." for each invalid field. */
function fieldWords(fields) {
  return Object.entries(fields)
    .map(([name, text]) => `${NAMES[name.split(".")[0]] ?? name}: ${text}`).join(" ");
}

/** Returns the Problem's sentences: one for a refusal, or one for each invalid field. */
export function problemWords(error) {
  if (error.status === 422 && Object.keys(error.fields).length) return fieldWords(error.fields);
  return error.message;
}
