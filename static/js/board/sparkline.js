// The last 60 s of utilization as one SVG line and its area; holes stay holes.

import { HISTORY_SECONDS } from "./model.js";

const SVG = "http://www.w3.org/2000/svg";
const TOP = 100;

export function makeSparkline() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", `0 0 ${HISTORY_SECONDS - 1} ${TOP}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const name of ["spark-area", "spark-line"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    path.setAttribute("vector-effect", "non-scaling-stroke");
    svg.append(path);
  }
  return svg;
}

/** Runs of seconds without a hole, oldest first: [[x, utilPct], ...]. */
function runs(cell) {
  const found = [];
  let run = null;
  for (let x = 0; x < HISTORY_SECONDS; x++) {
    const util = cell.utilAgo(HISTORY_SECONDS - 1 - x);
    if (util === null) run = null;
    else if (run) run.push([x, util]);
    else found.push((run = [[x, util]]));
  }
  return found;
}

export function drawSparkline(svg, cell) {
  if (svg.drawnAt === cell.noted) return;
  svg.drawnAt = cell.noted;
  let line = "";
  let area = "";
  for (const run of runs(cell)) {
    const points = run.map(([x, util]) => `${x} ${TOP - util}`).join("L");
    // A single second is still visible: a line of length zero with round ends is a dot.
    line += `M${points}${run.length === 1 ? "h0" : ""}`;
    area += `M${run[0][0]} ${TOP}L${points}L${run[run.length - 1][0]} ${TOP}Z`;
  }
  svg.firstChild.setAttribute("d", area);
  svg.lastChild.setAttribute("d", line);
}
