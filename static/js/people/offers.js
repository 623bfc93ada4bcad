// Offers to the reader: what accepting would be is asked for when the page is open.
import { api } from "../api.js";
import { credits } from "../format.js";

const words = (found) => {
  if (!found.ok) return `Not possible for you now: ${found.refusal.detail}`;
  const rank = found.rank_after ? ` Your rank: ${found.rank_before} to ${found.rank_after} of ${found.of}.` : "";
  const left = found.quota_left_gpu_hours === null ? "" : `, ${credits(found.quota_left_gpu_hours)} of your quota left`;
  return `For you it would be ${found.kind}: ${credits(found.cost_gpu_hours)}${left}.${rank}`;
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
