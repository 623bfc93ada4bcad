// Giving back a part: shows the refund and the cost before the button is pressed.
import { api } from "../api.js";
import { credits } from "../format.js";
import { gettext } from "../words.js";

const WAIT_MS = 250;
let timer = 0;
let turn = 0;

const words = (found) => {
  const back = gettext("You get {credits} back", { credits: credits(found.returned_credits) });
  return found.late_credits
    ? gettext("{back}. Returning this late costs up to {credits}, less if someone else books the time.", { back, credits: credits(found.late_credits) })
    : `${back}.`;
};

async function look(form) {
  const mine = ++turn;
  const said = form.querySelector("[data-price-said]");
  const data = new FormData(form);
  const hours = Number(data.get("hours"));
  const gpus = data.getAll("gpus").flatMap((box) => box.split(",")).map(Number);
  if (!hours && !gpus.length) { said.textContent = gettext("Choose a part first."); return; }
  try {
    const found = await api("POST", form.dataset.price, { hours, gpu_ids: gpus });
    if (mine === turn) said.textContent = words(found);
  } catch (error) {
    if (mine === turn) said.textContent = error.message;
  }
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-price]");
  if (!form) return;
  clearTimeout(timer);
  timer = setTimeout(() => look(form), WAIT_MS);
});
