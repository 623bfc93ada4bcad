// "Use a voucher" (a Token): one firm booking beyond the horizon limits, spent by booking.
import { el } from "../../dom.js";
import { icon } from "../../icons.js";
import { gettext } from "../../words.js";

/** node is filled where the chosen membership has a token that is not spent. */
export function watchToken(node, { draft, config }) {
  const box = el("input", { type: "checkbox", id: "use-token" });
  const words = el("span", {});
  node.append(el("label", { class: "check" }, box, icon("key"), words));
  box.addEventListener("change", () => {
    const [token] = own();
    draft.set({ token: box.checked && token ? token.id : null }, "token");
  });
  const own = () => (config.tokens ?? []).filter((one) => one.membership === draft.membership);
  const draw = () => {
    const tokens = own();
    node.hidden = !draft.open || !tokens.length || Boolean(draft.editing);
    // A token of another membership pays nothing here.
    if (draft.token && !tokens.some((one) => one.id === draft.token)) {
      draft.set({ token: null }, "token");
      return;
    }
    box.checked = Boolean(draft.token);
    words.textContent = gettext("Use a voucher ({n} left): firm, however far ahead", { n: tokens.length });
  };
  draft.addEventListener("change", draw);
  return draw;
}
