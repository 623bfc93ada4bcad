// Tabs by the ARIA pattern: arrow keys move, the panel follows, the address remembers.

export function startTabs(list, onShow) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const show = (tab, focus = true) => {
    for (const other of tabs) {
      const on = other === tab;
      other.setAttribute("aria-selected", String(on));
      other.tabIndex = on ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !on;
    }
    if (focus) tab.focus();
    history.replaceState(null, "", `#${tab.id.replace("tab-", "")}`);
    onShow?.(tab.id);
  };
  for (const [at, tab] of tabs.entries()) {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", ({ key }) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[key];
      if (to !== undefined) show(tabs[(to + tabs.length) % tabs.length]);
    });
  }
  const follow = () => {
    const wanted = tabs.find((tab) => `#${tab.id.replace("tab-", "")}` === location.hash);
    if (wanted) show(wanted, false);
  };
  addEventListener("hashchange", follow);
  follow();
}
