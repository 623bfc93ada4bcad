// Parts of a Job's page that the server renders again: its measured plan and its files.

import { redraw } from "../fragment.js";

const AGAIN_MS = 5000;
const PARTS = { "tab-plan": "job-measured", "tab-files": "job-files" };

/** Fetches one part again, if it is on the page. */
const again = (id) => redraw(id, document.getElementById(id)?.dataset.url);

/** Keeps the visible part up to date. Returns callbacks for a shown tab and a changed Job. */
export function startParts(lives) {
  const shown = () => document.querySelector("[role=tab][aria-selected=true]")?.id;
  setInterval(() => {
    const tab = shown();
    if (tab in PARTS && !document.hidden && lives()) again(PARTS[tab]);
  }, AGAIN_MS);
  return {
    tabShown: (tab) => { if (tab in PARTS) again(PARTS[tab]); },
    moved: () => Object.values(PARTS).forEach(again),
  };
}
