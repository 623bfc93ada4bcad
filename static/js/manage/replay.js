// A replay that waits or runs: the page is fetched again until there is a result.

import { redraw } from "../fragment.js";

const AGAIN_MS = 1000;

setInterval(() => {
  const { url } = document.getElementById("replay").dataset;
  if (url) redraw("replay", url);
}, AGAIN_MS);
