// The draft in the drawer survives a reload, the Back button and the end
// of a session. It is stored in this tab until it is booked or closed.
const KEY = "calendar-draft";
const FIELDS = ["gpuIds", "start", "end", "purpose", "membership", "plan", "voucher"];

/** Returns true after a reload, the Back button or a sign-in. Then the draft is restored. */
function comesBack() {
  const [entry] = performance.getEntriesByType("navigation");
  if (["reload", "back_forward"].includes(entry?.type)) return true;
  try {
    return new URL(document.referrer).pathname.startsWith("/login/");
  } catch {
    return false;
  }
}

/** Store the draft from now on. `me` is its user. */
export function keepDraft(draft, me) {
  draft.addEventListener("change", () => {
    try {
      if (!draft.open) { sessionStorage.removeItem(KEY); return; }
      const kept = Object.fromEntries(FIELDS.map((name) => [name, draft[name]]));
      sessionStorage.setItem(KEY, JSON.stringify({ ...kept, me, editing: draft.editing?.id ?? null }));
    } catch { /* no storage: the draft lives as long as the page */ }
  });
}

/** {me, editing, fields} of the stored draft, or null. */
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
