// The page of the waitlist: sends requests and answers offers. The server renders the lists.
import { api } from "../api.js";
import { fromWall } from "../calendar/zone.js";
import { pageData } from "../dom.js";
import { ask, toastProblem } from "../toast.js";
import { connectJob, jobOf } from "./job.js";
import { gettext } from "../words.js";

const { zone } = pageData("waiting-config");
const form = document.getElementById("wait-form");
const [LOOKS, LOOK_MS] = [6, 400];
const problem = document.getElementById("wait-problem");

/** The request for the API, without empty times. */
function wish() {
  const { elements } = form;
  const body = {
    count: Number(elements.count.value),
    hours: Number(elements.hours.value),
    min_memory_gib: Number(elements.min_memory_gib.value),
    gpu_class: elements.gpu_class.value,
    purpose: elements.purpose.value,
    any_notice: elements.any_notice.checked,
  };
  for (const name of ["earliest", "latest"]) {
    if (elements[name].value) body[name] = fromWall(elements[name].value, zone).toISOString();
  }
  if (elements.membership) body.membership = Number(elements.membership.value);
  const job = jobOf(Object.fromEntries([...elements].map((one) => [one.name, one])));
  return job ? { ...body, job } : body;
}

connectJob(form);

const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

/** Wait a few seconds at most until the portal has processed a new request. */
async function lookedAt(id) {
  for (let turn = 0; turn < LOOKS; turn += 1) {
    await pause(LOOK_MS);
    const { requests } = await api("GET", "/waiting");
    const own = requests.find((one) => one.id === id);
    if (!own || own.state !== "waiting" || own.expected || own.offer) return;
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button[type=submit]");
  button.disabled = true;
  problem.hidden = true;
  try {
    const made = await api("POST", "/waiting", wish());
    await lookedAt(made.id);
    location.assign(`${location.pathname}#request-${made.id}`);
    location.reload();
  } catch (error) {
    button.disabled = false;
    if (error.name !== "Problem") throw error;
    // The message of an invalid field contains its name already.
    const more = Object.values(error.fields).flat().filter((text) => !error.message.includes(text));
    problem.textContent = [error.message, ...more].join(" ");
    problem.hidden = false;
  }
});

const ACTS = {
  withdraw: ["DELETE", (id) => `/waiting/${id}`],
  accept: ["POST", (id) => `/waiting/${id}/accept`],
  decline: ["POST", (id) => `/waiting/${id}/decline`],
};

const SURE = {
  withdraw: {
    title: gettext("Withdraw this request?"), yes: gettext("Withdraw"),
    text: gettext("You lose your place in the queue."),
  },
};

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-act]");
  if (!button) return;
  const { act, request } = button.dataset;
  if (SURE[act] && !(await ask(SURE[act]))) return;
  const [method, path] = ACTS[act];
  button.disabled = true;
  try {
    await api(method, path(request));
    location.reload();
  } catch (error) {
    button.disabled = false;
    toastProblem(error);
  }
});

const filter = document.querySelector(".wait-filter");
if (filter) {
  filter.querySelector("button").hidden = true;
  filter.addEventListener("change", () => filter.requestSubmit());
  // Leave empty choices out of the address.
  filter.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (!value) formData.delete(name);
  });
}
