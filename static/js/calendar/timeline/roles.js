// EventCalendar calls its rows a table, which they are not: rows of a table hold
// cells, and these hold time. A screen reader announces a group of bookings instead, one
// stop of the Tab key, with the arrow keys moving from bar to bar.
import { gettext } from "../../words.js";

const TABLE_ROLES = "table row rowgroup cell columnheader rowheader".split(" ");
const SELECTOR = TABLE_ROLES.map((role) => `[role=${role}]`).join();
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function plain(host) {
  for (const node of host.querySelectorAll(SELECTOR)) {
    for (const name of ["role", "aria-colindex", "aria-colspan"]) node.removeAttribute(name);
  }
  // Screen readers ignore a name on <time>. Its text contains the same.
  for (const node of host.querySelectorAll("time[aria-label]")) node.removeAttribute("aria-label");
  for (const node of host.querySelectorAll(":is(article, aside, header):not([role])")) node.setAttribute("role", "none");
  const main = host.querySelector(".ec-main");
  if (main && !main.hasAttribute("tabindex")) {
    main.tabIndex = 0;
    main.setAttribute("role", "group");
    main.setAttribute("aria-label", gettext("Bookings by GPU; arrow keys move between them"));
  }
}

const faces = (host) => [...host.querySelectorAll("button.bar-face")];
const centre = (node) => {
  const box = node.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
};

/** Returns the nearest bar in one direction. A bar in the same line takes precedence. */
function neighbour(host, from, [right, down]) {
  const [x, y] = centre(from);
  let best = null;
  let bestCost = Infinity;
  for (const face of faces(host)) {
    const [dx, dy] = centre(face).map((at, axis) => at - [x, y][axis]);
    const along = dx * right + dy * down;
    const aside = Math.abs(dx * down) + Math.abs(dy * right);
    if (face === from || along <= 2) continue;
    const cost = along + (right ? 20 : 3) * aside;
    if (cost < bestCost) [best, bestCost] = [face, cost];
  }
  return best;
}

/** Keep the roles right after each change, and call open(reservationId) for a pressed bar. */
export function watchRoles(host, open) {
  plain(host);
  new MutationObserver(() => plain(host)).observe(host, { childList: true, subtree: true });
  host.addEventListener("click", (event) => {
    const face = event.target.closest("[data-reservation]");
    if (face) open(Number(face.dataset.reservation));
  });
  host.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    const face = event.target.closest("button.bar-face");
    if (!step || (!face && !event.target.matches(".ec-main"))) return;
    const next = face ? neighbour(host, face, step) : faces(host)[0];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}
