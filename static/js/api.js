// The JSON API for pages: api("POST", "/reservations", {...}) -> answer.
// Paths are under /api/v1. Anything but success throws a Problem (RFC 9457):
//   status, code, message (the detail), fields {name: text}, nextSlot, worksInstead, longestEnd,
//   problem (as it came)
// Forms and files: pass FormData as the body. Raw answers: options.raw = true.

import { signedOut, toLogin } from "./live.js";
import { gettext } from "./words.js";

export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || gettext("The portal answered {status}.", { status }));
    this.name = "Problem";
    this.status = status;
    this.code = problem.code || "error";
    this.fields = problem.fields || {};
    this.nextSlot = problem.next_slot || null;
    this.worksInstead = problem.works_instead || null;
    this.longestEnd = problem.longest_end || null;
    this.problem = problem;
  }
}

export function csrfToken() {
  const field = document.querySelector("input[name=csrfmiddlewaretoken]");
  return field ? field.value : "";
}

async function problemOf(answer) {
  const type = answer.headers.get("content-type") || "";
  if (type.includes("json")) return answer.json();
  return { title: answer.statusText, detail: gettext("The portal answered {status}.", { status: answer.status }) };
}

export async function api(method, path, body, { signal, raw = false } = {}) {
  const address = path.startsWith("/api/") ? path : `/api/v1${path}`;
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRFToken"] = csrfToken();
  let sent;
  if (body instanceof FormData) sent = body;
  else if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    sent = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(address, {
      method, headers, body: sent, signal, credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, {
      code: "unreachable",
      detail: gettext("The portal cannot be reached. What you typed is still here; try again in a moment."),
    });
  }
  if (answer.status === 401) toLogin();
  if (!answer.ok) {
    const problem = await problemOf(answer);
    // Without its cookies a browser fails the CSRF check before it counts as signed out.
    if (problem.code === "page-expired" && (await signedOut())) toLogin();
    throw new Problem(answer.status, problem);
  }
  if (raw) return answer;
  return answer.status === 204 ? null : answer.json();
}
