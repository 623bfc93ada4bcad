// The draft in the drawer outlives a reload, a visit to another page's Back and the end
// of a session: it is kept in this tab until it is booked or closed.
const KEY = "calendar-draft";
const FIELDS = ["gpuIds", "start", "end", "purpose", "membership", "plan", "voucher"];

/** Whether the page is shown again rather than anew: then the draft goes on. */
function comesBack() {
  const [entry] = performance.getEntriesByType("navigation");
  if (["reload", "back_forward"].includes(entry?.type)) return true;
  try {
    return new URL(document.referrer).pathname.startsWith("/login/");
  } catch {
    return false;
  }
}

/** Keep what is in the draft from now on; `me` is whose it is. */
export function keepDraft(draft, me) {
  draft.addEventListener("change", () => {
    try {
      if (!draft.open) { sessionStorage.removeItem(KEY); return; }
      const kept = Object.fromEntries(FIELDS.map((name) => [name, draft[name]]));
      sessionStorage.setItem(KEY, JSON.stringify({ ...kept, me, editing: draft.editing?.id ?? null }));
    } catch { /* no storage: the draft lives as long as the page */ }
  });
}

/** {me, editing, fields} of the draft that was open here; null for none. */
export function keptDraft(me) {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
    if (!comesBack() || !found || found.me !== me || !Array.isArray(found.gpuIds)) {
      sessionStorage.removeItem(KEY);
      return null;
    }
    const { editing } = found;
    return { editing, fields: Object.fromEntries(FIELDS.map((name) => [name, found[name]])) };
  } catch {
    return null;
  }
}
