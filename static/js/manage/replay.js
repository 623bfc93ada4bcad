// A replay that waits or runs: fetches the page again until it has a result.

import { redraw } from "../fragment.js";

const AGAIN_MS = 1000;

setInterval(() => {
  const { url } = document.getElementById("replay").dataset;
  if (url) redraw("replay", url);
}, AGAIN_MS);
