// Actions of the holder on the card: check in, keep, give back.
import { api } from "../api.js";
import { el, setText } from "../dom.js";
import { icon } from "../icons.js";
import { clock } from "../time.js";
import { ask, toast, toastProblem } from "../toast.js";
import { gettext } from "../words.js";

const acts = {
  async checkin(number) {
    await api("POST", `/reservations/${number}/check-in`);
    toast(gettext("Checked in."));
  },
  async keep(number) {
    await api("POST", `/reservations/${number}/keep`);
    toast(gettext("Kept: idle time will not release this reservation again."));
  },
  async release(number, name) {
    const sure = await ask({
      title: gettext("Give the GPUs back now?"), yes: gettext("Give back now"), no: gettext("Keep them"),
      text: gettext("Reservation {number} on {name} ends. Jobs that run there are stopped, and others may book the time at once.", { number, name }),
    });
    if (!sure) return;
    await api("POST", `/reservations/${number}/release`);
    toast(gettext("Given back."));
  },
};

export function makeMine() {
  const words = el("span", { class: "mine-words" });
  const button = (act, sign, text) => el("button", { type: "button", class: "btn btn-s", "data-act": act }, icon(sign), text);
  const mine = {
    root: el("div", { class: "gpu-mine", hidden: true }, words), words, cell: null,
    checkin: button("checkin", "check", gettext("I’m here")), keep: button("keep", "reserved", gettext("Keep (once)")),
    release: button("release", "released", gettext("Give back")),
  };
  mine.root.append(mine.checkin, mine.keep, mine.release);
  mine.root.addEventListener("click", async ({ target }) => {
    const pressed = target.closest("[data-act]");
    const number = mine.cell?.holder?.reservation;
    if (!pressed || !number) return;
    pressed.disabled = true;
    try {
      await acts[pressed.dataset.act](number, mine.cell.name);
    } catch (error) {
      toastProblem(error);
    }
    pressed.disabled = false;
  });
  return mine;
}

export function drawMine(mine, cell) {
  mine.cell = cell;
  const own = Boolean(cell.holder?.mine && cell.holder.reservation);
  mine.root.hidden = !own;
  if (!own) return;
  const { looming } = cell.holder;
  setText(mine.words, looming ? gettext("{text}. You lose this booking at {time} {unless}.", { text: looming.text, time: clock(looming.release_at), unless: looming.unless }) : "");
  mine.words.hidden = !looming;
  mine.checkin.hidden = looming?.kind !== "no_show";
  mine.keep.hidden = looming?.kind !== "idle" || !looming.keep;
  mine.root.classList.toggle("is-looming", Boolean(looming));
}
