// The page of one endpoint: its figures every two seconds, and a form for one inference.

import { api, Problem } from "../api.js";
import { pageData, setClass, setText } from "../dom.js";
import { chip } from "../jobs/status.js";
import { ask, toast, toastProblem } from "../toast.js";
import { showFigures } from "./figures.js";
import { startTry } from "./try.js";
import { gettext } from "../words.js";

const LOOK_MS = 2000;
const AWAY_MS = 5000;
const LIVE = new Set(["queued", "starting", "running", "moving", "stopping"]);
const page = pageData("serve-page");
const at = (id) => document.getElementById(id);
let last = null;
let state = "";

function live(word, text) {
  setClass(at("serve-live"), `live live-${word}`);
  setText(at("serve-live"), text);
}

function show() {
  if (last) showFigures(last, at("figures-model").value);
}

/** Fetches the Job's state until it runs, and again if its server stops answering. */
async function runs() {
  if (state === "running") return true;
  ({ state } = await api("GET", `/serve/${page.job}`));
  at("serve-state").replaceChildren(chip(state));
  if (state !== "running") live("wait", LIVE.has(state) ? gettext("not started yet") : gettext("ended"));
  return state === "running";
}

async function look() {
  try {
    if (!await runs()) return LIVE.has(state) ? LOOK_MS : 0;
    const answer = await fetch(page.urls.stats, { credentials: "same-origin", headers: { Accept: "application/json" } });
    const told = await answer.json();
    if (answer.ok) {
      last = told;
      show();
      live("ok", gettext("live"));
      return LOOK_MS;
    }
    state = "";
    live("wait", told.detail);
    return AWAY_MS;
  } catch (error) {
    if (!(error instanceof TypeError || error instanceof SyntaxError || error instanceof Problem)) throw error;
    live("late", gettext("no answer from the portal"));
    return AWAY_MS;
  }
}

async function follow() {
  const pause = document.hidden ? AWAY_MS : await look();
  if (pause) setTimeout(follow, pause);
}

/** Calls the API once and loads the page again. */
async function act(method, path, body) {
  try {
    await api(method, path, body);
    location.reload();
  } catch (error) {
    toastProblem(error);
  }
}

for (const button of document.querySelectorAll("[data-take-out]")) {
  const name = button.dataset.takeOut;
  button.addEventListener("click", async () => {
    const sure = await ask({ title: gettext("Remove {name}?", { name }), text: gettext("Waiting requests are refused. The model file is kept."), yes: gettext("Remove") });
    if (sure) act("DELETE", `/serve/${page.job}/models/${encodeURIComponent(name)}`);
  });
}
at("serve-stop")?.addEventListener("click", async () => {
  const sure = await ask({ title: gettext("Stop serving?"), text: gettext("All models here stop answering. You keep the reservation until you return it."), yes: gettext("Stop"), no: gettext("Keep serving") });
  if (sure) act("POST", `/jobs/${page.job}/stop`, {});
});
at("serve-move")?.addEventListener("click", async () => {
  const sure = await ask({ title: gettext("Move to another GPU?"), text: gettext("The portal takes the least used GPU of this reservation that has room. Without one, it books a GPU until this reservation ends. The address stays the same."), yes: gettext("Move") });
  if (sure) act("POST", `/serve/${page.job}/move`, {});
});
at("serve-admits")?.addEventListener("change", async (event) => {
  try {
    await api("PATCH", `/serve/${page.job}`, { admits: event.target.value });
    toast(gettext("Saved. Models that are already here stay."));
  } catch (error) {
    toastProblem(error);
  }
});
at("figures-model").addEventListener("change", show);
startTry(page);
if (page.live) follow();
else live("off", gettext("ended"));
