// "Use a voucher": one firm booking beyond the horizons. Booking spends the voucher.
import { el } from "../../dom.js";
import { icon } from "../../icons.js";
import { gettext } from "../../words.js";

/** node is filled if the chosen membership has an unspent voucher. */
export function watchVouchers(node, { draft, config }) {
  const box = el("input", { type: "checkbox", id: "use-voucher" });
  const words = el("span", {});
  node.append(el("label", { class: "check" }, box, icon("key"), words));
  box.addEventListener("change", () => {
    const [voucher] = own();
    draft.set({ voucher: box.checked && voucher ? voucher.id : null }, "voucher");
  });
  const own = () => (config.vouchers ?? []).filter((one) => one.membership === draft.membership);
  const draw = () => {
    const vouchers = own();
    node.hidden = !draft.open || !vouchers.length || Boolean(draft.editing);
    // A voucher of another membership is not valid here.
    if (draft.voucher && !vouchers.some((one) => one.id === draft.voucher)) {
      draft.set({ voucher: null }, "voucher");
      return;
    }
    box.checked = Boolean(draft.voucher);
    words.textContent = gettext("Use a voucher ({n} left): firm, however far ahead", { n: vouchers.length });
  };
  draft.addEventListener("change", draw);
  return draw;
}
