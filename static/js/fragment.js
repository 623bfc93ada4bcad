// Parts of a page that the server renders again. The answer is parsed as a separate
// document, in which no script runs. Its elements replace those of the page with the same id.

import { setAttr } from "./dom.js";

/** Fetches a page. Returns {answer, page}, or null if the portal cannot be reached. */
export async function fetchPage(url, options = {}) {
  try {
    const answer = await fetch(url, { ...options, headers: { Accept: "text/html", ...options.headers } });
    return { answer, page: new DOMParser().parseFromString(await answer.text(), "text/html") };
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}

/** Replaces the elements with the same ids. The focus stays. */
export function replace(elements) {
  const focused = document.activeElement?.id;
  for (const fresh of elements) {
    const old = document.getElementById(fresh.id);
    if (!old) continue;
    old.replaceWith(document.adoptNode(fresh));
    fresh.dispatchEvent(new CustomEvent("fragment-replaced", { bubbles: true }));
  }
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** Fetches one element of the page and puts it in place.
 *  Returns false if the answer does not contain it. Then the old element stays.
 *  before(): called after the answer, while the old element is still in the page. */
export async function redraw(id, url, before = () => null) {
  const old = document.getElementById(id);
  if (!old || old.hasAttribute("aria-busy")) return false;
  setAttr(old, "aria-busy", "true");
  try {
    const found = await fetchPage(url, { headers: { "X-Fragment": id } });
    const fresh = found?.answer.ok && !found.answer.redirected && found.page.getElementById(id);
    if (!fresh || !old.isConnected) return false;
    before();
    replace([fresh]);
    return true;
  } finally {
    setAttr(old, "aria-busy", null);
  }
}

/** Returns a function that runs `work` once at a time. Of the calls during a
 *  run only the last one is kept, and it runs afterwards. */
export function oneAtATime(work) {
  let running = false;
  let again = false;
  return async () => {
    again = true;
    if (running) return;
    running = true;
    try {
      while (again) {
        again = false;
        await work();
      }
    } finally {
      running = false;
    }
  };
}

/** Returns a function that calls `work` after a pause in its calls. */
export function settled(work, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
}
