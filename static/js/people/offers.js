// Offers to the reader: fetches the effect of accepting once the page is open.
import { api } from "../api.js";
import { credits } from "../format.js";
import { gettext } from "../words.js";
import { kindWord } from "../state_words.js";

const words = (found) => {
  if (!found.ok) return gettext("Not possible for you now: {reason}", { reason: found.refusal.detail });
  const rank = found.rank_after ? gettext(" Your rank: {before} to {after} of {count}.", { before: found.rank_before, after: found.rank_after, count: found.of }) : "";
  const left = found.quota_left_credits === null ? "" : gettext(", {credits} of your quota left", { credits: credits(found.quota_left_credits) });
  return gettext("For you it would be {kind}: {credits}{left}.{rank}", { kind: kindWord(found.kind), credits: credits(found.cost_credits), left, rank });
};

for (const place of document.querySelectorAll("[data-outlook]")) {
  const said = place.querySelector("span");
  try {
    const found = await api("POST", `/offers/${place.dataset.outlook}/preview`);
    said.textContent = words(found);
    place.classList.add(found.ok ? "notice-good" : "notice-warn");
    document.querySelector(`[data-kind="${place.dataset.outlook}"]`).value = found.kind ?? "";
  } catch (error) {
    said.textContent = error.message;
    place.classList.add("notice-warn");
  }
}
