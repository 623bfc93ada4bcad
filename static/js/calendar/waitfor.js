// "Wait for it": what the draft asks for goes on the waitlist, as long and as many, of
// the class that was chosen, from its start on.
import { api } from "../api.js";
import { toast, toastProblem } from "../toast.js";

export function makeWait({ store, config, drawer }) {
  return async (draft) => {
    const classes = new Set(draft.gpuIds.map((id) => store.gpu(id)?.gpu_class).filter(Boolean));
    const wish = {
      membership: draft.membership, count: draft.gpuIds.length, hours: draft.seconds() / 3600,
      gpu_class: classes.size === 1 ? [...classes][0] : "", purpose: draft.purpose,
      ...(draft.startAt() > new Date() ? { earliest: draft.startAt().toISOString() } : {}),
    };
    try {
      const row = await api("POST", "/waiting", wish);
      drawer.close();
      const place = row.position ? ` You are number ${row.position}.` : "";
      toast(`Waiting for ${wish.count === 1 ? "a GPU" : `${wish.count} GPUs`} over ${wish.hours} h.${place} You are told when it is placed.`, {
        undo: () => api("DELETE", `/waiting/${row.id}`), undoLabel: "Undo",
      });
      store.reload().catch(toastProblem);
    } catch (error) {
      toastProblem(error);
    }
  };
}
