// "Book and open": the page of the reservation opens the program once it runs. The wish is
// kept in the tab, so that no link of another page can open anything.
const WISH = "gpuportal.open-workspace";
const LASTS_MS = 3 * 60_000;
const STEADY_MS = 2500;
let seenAt = null;

export function wishOpen() {
  sessionStorage.setItem(WISH, String(Date.now()));
}

/** Opens the newest program of the panel, if the person wished so and it still runs after
 *  a moment. A program that is missing ends at once, and the panel says why. */
export function openWished(again) {
  const since = Number(sessionStorage.getItem(WISH));
  if (!since) return;
  if (Date.now() - since > LASTS_MS) {
    sessionStorage.removeItem(WISH);
    return;
  }
  const form = document.querySelector("#workspaces form[data-enter]");
  if (!form) return;
  seenAt ??= Date.now();
  if (Date.now() - seenAt < STEADY_MS) {
    setTimeout(again, STEADY_MS);
    return;
  }
  sessionStorage.removeItem(WISH);
  form.removeAttribute("target");
  form.submit();
}

export function forgetWish() {
  sessionStorage.removeItem(WISH);
}
