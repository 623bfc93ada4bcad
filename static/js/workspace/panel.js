// The workspaces of a reservation: fetched again when a job changes, and every two seconds
// while one of them starts or stops.
import { oneAtATime, redraw, settled } from "../fragment.js";
import { openWished } from "./wished_program.js";

const AGAIN_MS = 2000;
const SETTLED_MS = 300;
const again = oneAtATime(async () => {
  const panel = document.getElementById("workspaces");
  // Keep typed text of the form.
  if (!panel || document.activeElement?.closest("#workspaces input, #workspaces select")) return;
  await redraw("workspaces", panel.dataset.url);
  openWished(again);
});

document.addEventListener("jobs-changed", settled(again, SETTLED_MS));
setInterval(() => {
  const panel = document.getElementById("workspaces");
  if (panel && "changing" in panel.dataset && !document.hidden) again();
}, AGAIN_MS);
openWished(again);
