// Light, dark or the system's theme. A cookie keeps the choice, so that the server writes
// it into the next page and the page does not flash.

const YEAR_SECONDS = 365 * 86_400;
const root = document.documentElement;
const choices = () => document.querySelectorAll("[data-theme-choice]");

function show(theme) {
  for (const choice of choices()) {
    const chosen = choice.dataset.themeChoice === theme;
    if (choice.type === "radio") choice.checked = chosen;
    else choice.setAttribute("aria-checked", String(chosen));
  }
}

export function setTheme(theme) {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `theme=${theme}; path=/; max-age=${YEAR_SECONDS}; samesite=lax${secure}`;
  show(theme);
  document.dispatchEvent(new CustomEvent("theme:changed", { detail: { theme } }));
}

show(root.dataset.theme || "system");
for (const choice of choices()) {
  choice.addEventListener(choice.type === "radio" ? "change" : "click", () => {
    setTheme(choice.dataset.themeChoice);
    choice.closest("[popover]")?.hidePopover();
  });
}
