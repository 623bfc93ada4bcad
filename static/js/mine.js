// My reservations: extend, check in, keep, give back and cancel in place. The page is
// fetched again after each, and when one of the shown reservations changes elsewhere.
import { api } from "./api.js";
import { connect } from "./live.js";
import { clock, writeTimes } from "./time.js";
import { ask, toast, toastProblem, toastRefusedEnd } from "./toast.js";
import { gettext } from "./words.js";

const AGAIN_MS = 800;
let timer = null;
let busy = false;
let turn = 0;
const pressed = () => document.querySelector("#mine :active") !== null;

/** unless(): called after the answer. If it returns true, the page stays as it is. */
async function refresh(unless = () => false) {
  const mine = ++turn;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  // Ignore this answer: a newer request was sent.
  if (mine !== turn || unless()) return;
  if (!answer.ok || answer.redirected) { location.reload(); return; }
  const text = await answer.text();
  if (mine !== turn || unless()) return;
  const page = new DOMParser().parseFromString(text, "text/html");
  const [old, fresh] = [document.getElementById("mine"), page.getElementById("mine")];
  if (!fresh) { location.reload(); return; }
  const held = document.activeElement?.closest("#mine [data-act]");
  const key = held ? `[data-act="${held.dataset.act}"][data-id="${held.dataset.id}"]` : null;
  // Marked words of the new middle need their cards too.
  for (const card of page.querySelectorAll(".term-card")) {
    document.getElementById(card.id)?.remove();
    document.body.append(document.adoptNode(card));
  }
  old.replaceWith(document.adoptNode(fresh));
  writeTimes();
  if (key) (document.querySelector(key) ?? document.getElementById("content")).focus();
}

const inUse = () => busy || pressed() || document.querySelector("dialog:modal, .term-card:popover-open") !== null;

function later() {
  timer ??= setTimeout(() => {
    timer = null;
    if (inUse()) { later(); return; }
    refresh(() => {
      // Keep a pressed button until it is released.
      if (inUse()) later();
      return inUse();
    }).catch(toastProblem);
  }, AGAIN_MS);
}

const path = (button) => `/reservations/${button.dataset.id}`;
/** Each resolves to the message to show after the page shows the new state. */
const acts = {
  async extend(button) {
    const { end, before, version } = button.dataset;
    const until = async (at) => {
      const after = await api("PATCH", path(button), { end: at, version: Number(version) });
      return { undo: async () => {
        await api("PATCH", path(button), { end: before, version: after.version });
        await refresh();
      } };
    };
    try {
      return [gettext("One hour longer."), await until(end)];
    } catch (error) {
      if (!error.longestEnd) throw error;
      toastRefusedEnd(error, async (at) => {
        const undo = await until(at);
        await refresh();
        toast(gettext("Extended to {time}.", { time: clock(at) }), undo);
      });
      return null;
    }
  },
  async checkin(button) {
    await api("POST", `${path(button)}/check-in`);
    return [gettext("Checked in. It stays yours until its end while you use it.")];
  },
  async keep(button) {
    await api("POST", `${path(button)}/keep`);
    return [gettext("Kept. Idle time does not release this booking again.")];
  },
  async release(button) {
    const sure = await ask({
      title: gettext("Give the GPUs back now?"), yes: gettext("Give back now"), no: gettext("Keep them"),
      text: gettext("{name}. Jobs that run there are stopped, and others can book the time at once.", { name: button.dataset.name }),
    });
    if (!sure) return null;
    await api("POST", `${path(button)}/release`, { reason: "" });
    return [gettext("Given back.")];
  },
  async cancel(button) {
    await api("POST", `${path(button)}/cancel`, { reason: "" });
    return [gettext("Cancelled."), { undo: async () => {
      await api("POST", `${path(button)}/undo`);
      await refresh();
    } }];
  },
};

document.addEventListener("click", async (event) => {
  const button = event.target.closest("#mine [data-act]");
  if (!button || busy) return;
  button.disabled = busy = true;
  try {
    const said = await acts[button.dataset.act](button);
    await refresh();
    if (said) toast(...said);
  } catch (error) {
    toastProblem(error);
    await refresh().catch(() => null);
  }
  button.disabled = busy = false;
});

/** Messages go to all pages. Returns true if one is about the reader, by name or by a shown reservation. */
function concerns(reservation) {
  const page = document.getElementById("mine");
  return reservation.user === page.dataset.user || page.querySelector(`[data-id="${reservation.id}"]`) !== null;
}

connect("/ws/calendar/", {
  onJson: ({ type, reservation }) => {
    if (type === "reservation.changed" && reservation && concerns(reservation)) later();
  },
});
connect("/ws/jobs/", { onJson: ({ type }) => { if (type === "jobs.changed") later(); } });
