// Places popover menus under their buttons and moves in them by arrow keys. Navigations
// that fold (.fold-nav) are such menus on a phone, and a row of links elsewhere.

const GAP_PX = 6;
const MENUS = ":is(.menu, .fold-nav)[popover]";
const phone = matchMedia("(max-width: 40rem)"); // as in base.css

function place(menu) {
  const button = document.querySelector(`[popovertarget="${menu.id}"]`);
  if (!button) return;
  const at = button.getBoundingClientRect();
  if (menu.matches(".fold-nav")) {
    const most = innerHeight - at.bottom - 2 * GAP_PX;
    menu.style.setProperty("max-height", `${Math.max(most, innerHeight / 3)}px`);
    menu.style.setProperty("min-width", `${at.width}px`);
  }
  const left = menu.matches(".fold-nav") ? at.left : Math.min(at.right - menu.offsetWidth, innerWidth - menu.offsetWidth - GAP_PX);
  menu.style.setProperty("left", `${Math.max(GAP_PX, left)}px`);
  menu.style.setProperty("top", `${at.bottom + GAP_PX}px`);
}

function step(menu, by) {
  const items = [...menu.querySelectorAll(".menu-item, :scope.fold-nav > a")];
  const at = items.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : items.length - 1) : (at + by + items.length) % items.length;
  items[next]?.focus();
}

function opened(menu, isOpen) {
  const button = document.querySelector(`[popovertarget="${menu.id}"]`);
  button?.setAttribute("aria-expanded", String(isOpen));
  if (!isOpen) return;
  place(menu);
  if (button?.matches(":focus-visible")) menu.querySelector("[aria-current], .menu-item")?.focus();
}

for (const menu of document.querySelectorAll(MENUS)) {
  menu.addEventListener("toggle", (event) => opened(menu, event.newState === "open"));
  // On a slow connection a menu may be opened before this script is loaded.
  if (menu.matches(":popover-open")) opened(menu, true);
  menu.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    step(menu, by);
  });
}
addEventListener("resize", () => {
  for (const menu of document.querySelectorAll(":is(.menu, .fold-nav):popover-open")) place(menu);
});
phone.addEventListener("change", () => {
  for (const menu of document.querySelectorAll(".fold-nav:popover-open")) menu.hidePopover();
});
for (const button of document.querySelectorAll("[data-shows-current]")) {
  const menu = document.getElementById(button.getAttribute("popovertarget"));
  const current = menu.querySelector("[aria-current]");
  if (current) button.querySelector("span").textContent = current.textContent;
}
