// The button "Book" or "Save changes": sends the draft and shows the result or the refusal.
import { toast } from "../../toast.js";
import { gettext } from "../../words.js";

/** Returns the function that the form calls. */
export function makeSubmit({ button, draft, actions, drawer, verdict, config }) {
  async function send() {
    const { editing, plan, voucher } = draft;
    if (editing) {
      const changes = draft.changes();
      if (Object.keys(changes).length) await actions.change(editing, { ...changes, version: editing.version });
      drawer.close();
      return;
    }
    const made = await actions.book(draft.body());
    if (voucher) config.vouchers = config.vouchers.filter((one) => one.id !== voucher);
    if (plan) {
      location.assign(`${config.urls.launch}?reservation=${made.id}&plan=${plan}`);
      return;
    }
    drawer.close();
  }

  /** Label the button with its effect. A refused draft cannot be booked. */
  function paint() {
    const refused = draft.backwards() || verdict.answer?.ok === false;
    const [yes, no] = draft.editing ? [gettext("Save changes"), gettext("Cannot be saved")] : [gettext("Book"), gettext("Cannot be booked")];
    button.textContent = refused ? no : yes;
    button.classList.toggle("btn-primary", !refused);
  }
  draft.addEventListener("change", paint);
  document.addEventListener("shown", paint);

  // The button is never disabled: it would lose the focus.
  let sending = false;
  return async () => {
    const missing = draft.missing();
    if (missing) { toast(missing, { bad: true }); return; }
    if (sending) return;
    sending = true;
    button.setAttribute("aria-busy", "true");
    try {
      // Ask again after a refusal: the time may be free now.
      if (verdict.answer?.ok !== false || (await verdict.ask())?.ok) await send();
    } catch (error) {
      if (error.name !== "Problem") throw error;
      verdict.refused(error);
    } finally {
      sending = false;
      button.removeAttribute("aria-busy");
    }
  };
}
