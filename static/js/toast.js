// toast("Reservation cancelled.", {undo: async () => {...}}) shows a message for
// ten seconds, with a button that undoes. toast.bad(problem) shows an error.
// ask({title, text, yes, danger}) -> Promise<boolean>: asks for confirmation.

import { el } from "./dom.js";
import { icon } from "./icons.js";
import { clock } from "./time.js";
import { gettext } from "./words.js";

const SHOWN_SECONDS = 10;

const shelf = () => document.getElementById("toasts");

export function toast(text, { undo = null, undoLabel = gettext("Undo"), seconds = SHOWN_SECONDS, bad = false } = {}) {
  const close = el("button", { type: "button", class: "btn btn-quiet btn-icon btn-s", "aria-label": gettext("Dismiss"), on: { click: () => end() } }, icon("close"));
  const node = el("div", { class: "toast" }, bad ? icon("alert") : null, el("span", { class: "grow", text }));
  if (undo) {
    node.append(el("button", {
      type: "button", class: "btn btn-quiet btn-s undo", text: undoLabel,
      on: { click: async (event) => {
        event.currentTarget.disabled = true;
        try {
          await undo();
          end();
        } catch (error) {
          end();
          toastProblem(error);
        }
      } },
    }));
  }
  node.append(close);
  let timer = null;
  const run = () => { clearTimeout(timer); timer = setTimeout(() => end(), seconds * 1000); };
  const hold = () => clearTimeout(timer);
  const end = () => { clearTimeout(timer); node.remove(); };
  node.addEventListener("pointerenter", hold);
  node.addEventListener("pointerleave", run);
  node.addEventListener("focusin", hold);
  node.addEventListener("focusout", run);
  shelf().append(node);
  run();
  return { end };
}

/** Shows an error: the Problem's sentence, or a general one. */
export function toastProblem(error) {
  if (error?.name === "Problem") return toast(error.message, { bad: true });
  console.error(error);
  return toast(gettext("Something failed in this page. Reload it and try again."), { bad: true });
}

/** Shows a refused extension. If an earlier end would work, a button takes it: extend(end). */
export function toastRefusedEnd(error, extend) {
  const end = error?.longestEnd;
  if (!end) return toastProblem(error);
  return toast(error.message, { bad: true, undo: () => extend(end), undoLabel: gettext("Extend to {time}", { time: clock(end) }) });
}

export function ask({ title, text, yes, no = gettext("Keep"), danger = true }) {
  const dialog = el("dialog", { class: "dialog", "aria-labelledby": "ask-title" });
  const answer = (value) => () => dialog.close(value);
  dialog.append(el("div", { class: "dialog-body" },
    el("h2", { id: "ask-title", text: title }),
    el("p", { class: "muted", text }),
    el("div", { class: "actions" },
      el("button", { type: "button", class: "btn", text: no, on: { click: answer("") } }),
      el("button", { type: "button", class: `btn ${danger ? "btn-danger" : "btn-primary"}`, text: yes, on: { click: answer("yes") } }))));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(dialog.returnValue === "yes");
    }, { once: true });
  });
}
