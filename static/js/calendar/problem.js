// A Problem of the API in the page's own words: its names of fields are for programs.
const NAMES = {
  start: "Start", end: "End", gpu_ids: "GPUs", purpose: "What for", membership: "Charged to",
  count: "GPUs", hours: "Hours", min_memory_gib: "Memory", earliest: "Not before", latest: "Done by",
  message: "Message", reason: "Reason", user: "Person",
};

/** "What for: At most 120 characters." for each field that is wrong. */
function fieldWords(fields) {
  return Object.entries(fields)
    .map(([name, text]) => `${NAMES[name.split(".")[0]] ?? name}: ${text}`).join(" ");
}

/** The Problem's sentence. A refusal has one; a request with wrong fields has one for each. */
export function problemWords(error) {
  if (error.status === 422 && Object.keys(error.fields).length) return fieldWords(error.fields);
  return error.message;
}
