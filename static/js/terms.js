// Words of the glossary: buttons that show their explanation when pressed.
//
// {% term "flex" %} prints such a button and its card. Scripts use
//   term("flex")                       the word as a button
//   price("80 credits", "8 GPU-hours × 10 (A100) = 80 credits")
// A card that is not in the page is fetched once, from /help/terms.json.

import { el } from "./dom.js";
import { credits, gpuHours, hoursFigure } from "./format.js";
import { gettext, language } from "./words.js";

const GAP_PX = 6;
let glossary = null;
let pressed = null;

/** A word of the glossary as a button. */
export function term(key, text = key) {
  return el("button", { type: "button", class: "term", "data-term": key, text });
}

/** A cost as a button that shows its calculation. */
export function price(text, sum) {
  return el("button", { type: "button", class: "term", "data-sum": sum, text });
}

/** [{gpu_class, weight, gpu_hours}] -> "8 GPU-hours × 10 (A100) = 80 credits"; as price_sum in reservations/rules/figures.py. */
export function priceSum(parts, costCredits) {
  const words = parts.map((part) => `${gpuHours(part.gpu_hours)} × ${part.weight} (${part.gpu_class})`);
  const surcharge = costCredits - parts.reduce((sum, part) => sum + part.gpu_hours * part.weight, 0);
  if (surcharge > 0.05) words.push(gettext("{figure} for peak hours", { figure: hoursFigure(surcharge) }));
  return `${words.join(" + ")} = ${credits(costCredits)}`;
}

async function fetched() {
  glossary ??= fetch(`/help/terms.json?language=${language}`).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
  const found = await glossary;
  if (!found) glossary = null;
  return found;
}

/** Credits for one GPU-hour by class: {"A100 80 GB": 10}. {} if the portal cannot be reached. */
export async function creditsPerGpuHour() {
  return (await fetched())?.credits_per_gpu_hour ?? {};
}

function card(id, word, text, url) {
  return el("div", { popover: "auto", id, class: "term-card" },
    el("p", {}, el("strong", { text: word }), ` ${text}`),
    el("a", { href: url, text: gettext("More in Help") }));
}

/** Adds the site's prices, which only the server knows, to a card of the page. */
async function complete(shown) {
  const key = shown.dataset.card;
  if (key !== "credits" && key !== "weight") return;
  const found = (await fetched())?.terms[key];
  if (!found) return;
  delete shown.dataset.card;
  shown.querySelector("p").lastChild.textContent = ` ${found.text}`;
  place(shown);
}

async function open(button) {
  if (button.dataset.sum) {
    const shown = card(`term-price-${Date.now()}`, gettext("price"), button.dataset.sum, "/help/#credits");
    (button.closest("dialog") ?? document.body).append(shown);
    shown.addEventListener("toggle", (event) => { if (event.newState === "closed") shown.remove(); });
    shown.showPopover();
    return;
  }
  const id = `term-${button.dataset.term}`;
  let shown = document.getElementById(id);
  if (!shown) {
    const found = (await fetched())?.terms[button.dataset.term];
    if (!found) { location.assign(`/help/#${button.dataset.term}`); return; }
    shown = card(id, found.word, found.text, found.url);
  }
  (button.closest("dialog") ?? document.body).append(shown);
  shown.togglePopover();
}

function place(shown) {
  if (!pressed?.isConnected) return;
  const at = pressed.getBoundingClientRect();
  const left = Math.max(GAP_PX, Math.min(at.left, innerWidth - shown.offsetWidth - GAP_PX));
  const below = at.bottom + GAP_PX;
  const top = below + shown.offsetHeight > innerHeight ? Math.max(GAP_PX, at.top - GAP_PX - shown.offsetHeight) : below;
  shown.style.setProperty("left", `${left}px`);
  shown.style.setProperty("top", `${top}px`);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.(".term");
  if (!button) return;
  pressed = button;
  const shown = button.hasAttribute("popovertarget") ? document.getElementById(button.getAttribute("popovertarget")) : null;
  const dialog = button.closest("dialog");
  if (shown) {
    // A modal dialog makes the rest of the page inert, so the card moves into it.
    if (dialog && !dialog.contains(shown)) dialog.append(shown);
    return;
  }
  event.preventDefault();
  open(button);
});

document.addEventListener("toggle", (event) => {
  if (!event.target.classList?.contains("term-card") || event.newState !== "open") return;
  place(event.target);
  complete(event.target);
  const announcer = document.getElementById("announcer");
  if (announcer) announcer.textContent = event.target.querySelector("p").textContent;
}, true);

addEventListener("resize", () => {
  const shown = document.querySelector(".term-card:popover-open");
  if (shown) place(shown);
});
