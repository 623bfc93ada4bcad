// Shows once that the browser's zone differs from the portal's, and offers to change it.

const STORE = "zone-kept";
const form = document.getElementById("zone-banner");
const shown = document.documentElement.dataset.timeZone;

function clockOf(zone, at) {
  return new Intl.DateTimeFormat("en-GB", { timeZone: zone, dateStyle: "short", timeStyle: "short" }).format(at);
}

/** Returns true if two zones have equal clocks in winter and in summer. */
function same(one, other) {
  const year = new Date().getUTCFullYear();
  return [0, 6].every((month) => {
    const at = Date.UTC(year, month, 15, 12);
    return clockOf(one, at) === clockOf(other, at);
  });
}

export function startZoneHint() {
  if (!form) return;
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  let kept = null;
  try { kept = localStorage.getItem(STORE); } catch { /* private browsing: the hint comes again */ }
  if (!own || kept === `${own} ${shown}` || same(own, shown)) return;
  form.elements.time_zone.value = own;
  for (const place of form.querySelectorAll("[data-zone]")) place.textContent = own;
  form.querySelector("[data-zone-keep]").addEventListener("click", () => {
    try { localStorage.setItem(STORE, `${own} ${shown}`); } catch { /* as above */ }
    form.hidden = true;
  });
  form.hidden = false;
}
