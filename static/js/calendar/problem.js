// A Problem of the API in the page's own words: the names and sentences of the library
// that checks requests are for programs.
const NAMES = {
  start: "start", end: "end", gpu_ids: "GPUs", purpose: "What for", membership: "Charged to",
  count: "GPUs", hours: "Hours", min_memory_gib: "Memory", earliest: "Not before", latest: "Done by",
  message: "Message", reason: "Reason", user: "Person",
};

/** "Check these fields: start, What for." of a request that was not understood. */
export function fieldWords(fields) {
  const names = [...new Set(Object.keys(fields).map((name) => NAMES[name.split(".")[0]] ?? name))];
  return names.length ? `Check these fields: ${names.join(", ")}.` : "";
}

/** The Problem's sentence. A refusal has one; a request with wrong fields names them. */
export function problemWords(error) {
  if (error.status === 422 && Object.keys(error.fields).length) return fieldWords(error.fields);
  return error.message;
}
