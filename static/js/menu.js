// Places popover menus under their buttons and moves in them by arrow keys.

const GAP_PX = 6;

function place(menu) {
  const button = document.querySelector(`[popovertarget="${menu.id}"]`);
  if (!button) return;
  const at = button.getBoundingClientRect();
  const left = Math.min(at.right - menu.offsetWidth, innerWidth - menu.offsetWidth - GAP_PX);
  menu.style.setProperty("left", `${Math.max(GAP_PX, left)}px`);
  menu.style.setProperty("top", `${at.bottom + GAP_PX}px`);
}

function step(menu, by) {
  const items = [...menu.querySelectorAll(".menu-item")];
  const at = items.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : items.length - 1) : (at + by + items.length) % items.length;
  items[next]?.focus();
}

for (const menu of document.querySelectorAll(".menu[popover]")) {
  menu.addEventListener("toggle", (event) => {
    const button = document.querySelector(`[popovertarget="${menu.id}"]`);
    button?.setAttribute("aria-expanded", String(event.newState === "open"));
    if (event.newState !== "open") return;
    place(menu);
    if (button?.matches(":focus-visible")) menu.querySelector(".menu-item")?.focus();
  });
  menu.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    step(menu, by);
  });
}
addEventListener("resize", () => {
  for (const menu of document.querySelectorAll(".menu:popover-open")) place(menu);
});
