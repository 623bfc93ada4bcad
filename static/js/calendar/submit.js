// Pressing "Book" or "Save the change": what comes of it, and where a refusal goes.
import { toast } from "../toast.js";

/** Returns the function that the form calls. */
export function makeSubmit({ button, draft, actions, drawer, verdict, config }) {
  async function send() {
    const { editing, plan, token } = draft;
    const body = draft.body();
    const made = editing
      ? await actions.change(editing, { ...body, version: editing.version })
      : await actions.book(body);
    if (token) config.tokens = config.tokens.filter((one) => one.id !== token);
    if (plan) {
      location.assign(`${config.urls.launch}?reservation=${made.id}&plan=${plan}`);
      return;
    }
    drawer.close();
  }

  return async () => {
    const missing = draft.missing();
    if (missing) { toast(missing, { bad: true }); return; }
    button.disabled = true;
    try {
      await send();
    } catch (error) {
      if (error.name !== "Problem") throw error;
      verdict.refused(error);
    } finally {
      button.disabled = false;
    }
  };
}
