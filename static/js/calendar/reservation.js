// One reservation's page: change it, give it back, cancel it with undo, keep it.
import { Problem, api } from "../api.js";
import { el, pageData } from "../dom.js";
import { icon } from "../icons.js";
import { connect } from "../live.js";
import { clock, writeTimes } from "../time.js";
import { ask, toast, toastProblem } from "../toast.js";
import { keepTyped } from "../fields/typed.js";
import { whenFields } from "../fields/when.js";
import { problemWords } from "./drawer/problem.js";
import { addWall, ceilGrid, exact, toWall } from "./zone.js";
import { gettext } from "../words.js";

let config = pageData("reservation-config");
const path = () => `/reservations/${config.id}`;
const form = () => document.getElementById("change");

let busy = false;
const typing = () => busy || form()?.contains(document.activeElement);

/** Fetch the page again and replace its middle. Text in the other
 *  forms stays, and unfolded parts stay unfolded.
 *  unless(): called with the answer at hand. If it returns true, the page stays as it is. */
async function refresh(unless = () => false) {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (unless()) return;
  if (!answer.ok) { location.reload(); return; }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const middle = document.getElementById("reservation");
  const putBack = keepTyped(middle, form());
  const fresh = document.adoptNode(page.getElementById("reservation"));
  middle.replaceWith(fresh);
  config = pageData("reservation-config");
  whenFields();
  writeTimes();
  await null; // swap.js prepares its fields first
  putBack(fresh);
}

function say(error) {
  if (error.name !== "Problem") { toastProblem(error); return; }
  const words = problemWords(error);
  const place = document.getElementById("said");
  if (!place) { toastProblem(error); return; }
  const end = error.longestEnd;
  place.replaceChildren(el("div", { class: "notice notice-bad" }, icon("alert"), el("div", { class: "row grow" },
    el("span", { class: "grow", text: words }),
    end ? el("button", {
      type: "button", class: "btn btn-s", text: gettext("Extend to {time}", { time: clock(end) }),
      on: { click: ({ currentTarget }) => run(() => save({ end: toWall(end, config.zone) }), currentTarget) },
    }) : null)));
}

const acts = {
  async cancel() {
    await api("POST", `${path()}/cancel`);
    toast(gettext("Cancelled."), { undo: async () => { await api("POST", `${path()}/undo`); await refresh(); } });
  },
  async release() {
    const sure = await ask({
      title: gettext("Give the GPUs back now?"), yes: gettext("Give back now"), no: gettext("Keep them"),
      text: gettext("Reservation {number} ends. Jobs that run there are stopped, and others may book the time at once.", { number: config.id }),
    });
    if (!sure) return;
    await api("POST", `${path()}/release`);
    toast(gettext("Given back."));
  },
  async checkin() {
    await api("POST", `${path()}/check-in`);
    toast(gettext("Checked in: it is yours until its end, as long as it is used."));
  },
  async keep() {
    await api("POST", `${path()}/keep`);
    toast(gettext("Kept: idle time will not release this reservation again."));
  },
  async seen({ dataset }) {
    await api("POST", `/notices/${dataset.notice}/read`);
  },
  async take() {
    const made = await api("POST", "/reservations", pageData("next-slot"));
    location.assign(`/reservations/${made.id}/`);
  },
  async extend() {
    const end = ceilGrid(addWall(config.end, 3600), config.grid_seconds, config.zone);
    await save({ end });
  },
};

async function save(fields = {}) {
  const data = new FormData(form());
  if ([data.get("start"), fields.end ?? data.get("end")].includes("")) {
    throw new Problem(0, { detail: gettext("Give the day and the time, for example 14:30.") });
  }
  const boxes = [...form().querySelectorAll("[name=gpu]")];
  const body = {
    start: exact(data.get("start") ?? config.start, config.start_at, config.zone).toISOString(),
    end: exact(fields.end ?? data.get("end") ?? config.end, config.end_at, config.zone).toISOString(),
    gpu_ids: boxes.length ? boxes.filter((box) => box.checked).map((box) => Number(box.value)) : config.gpu_ids,
    version: config.version,
  };
  await api("PATCH", path(), body);
  toast(gettext("Changed."));
}

async function run(act, button) {
  button.disabled = busy = true;
  try {
    await act(button);
    await refresh();
  } catch (error) {
    say(error);
  }
  button.disabled = busy = false;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("#reservation [data-act]");
  if (button) run(acts[button.dataset.act], button);
});
document.addEventListener("submit", (event) => {
  if (event.target !== form()) return;
  event.preventDefault();
  run(() => save(), event.submitter ?? form().querySelector("[type=submit]"));
});

connect("/ws/calendar/", {
  onJson: ({ type, reservation }) => {
    const other = reservation?.id === config.id && (reservation.gone || reservation.version !== config.version);
    if (type === "reservation.changed" && other && !typing()) refresh(typing).catch(toastProblem);
  },
});
