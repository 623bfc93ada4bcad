// Pressing "Book" or "Save the change": what comes of it, and where a refusal goes.
import { toast } from "../toast.js";

/** Returns the function that the form calls. */
export function makeSubmit({ button, draft, actions, drawer, verdict, config }) {
  async function send() {
    const { editing, plan, token } = draft;
    if (editing) {
      const changes = draft.changes();
      if (Object.keys(changes).length) await actions.change(editing, { ...changes, version: editing.version });
      drawer.close();
      return;
    }
    const made = await actions.book(draft.body());
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
