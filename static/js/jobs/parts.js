// Parts of a Job's page that the server draws anew: what came of its plan, its files.

const AGAIN_MS = 5000;
const PARTS = { "tab-plan": ["job-measured", "measured-again"], "tab-files": ["job-files", "files-again"] };

/** Asks for one part again, if it is on the page. */
function again([id, event]) {
  document.getElementById(id)?.dispatchEvent(new CustomEvent(event));
}

/** Keeps the parts fresh while they are looked at; returns what to tell of moves. */
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
