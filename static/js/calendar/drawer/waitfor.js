// "Wait for it": puts the draft on the waitlist, with its length, number and class of
// GPUs, from its start on.
import { api } from "../../api.js";
import { duration } from "../../format.js";
import { toast, toastProblem } from "../../toast.js";
import { gpus as gpuCount } from "../words.js";
import { gettext } from "../../words.js";

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
      const place = row.position ? gettext(" You are number {position}.", { position: row.position }) : "";
      toast(gettext("On the waitlist: {gpus} for {time}.{place} You get a notice when it is booked.", { gpus: gpuCount(wish.count), time: duration(wish.hours * 3600), place }), {
        undo: () => api("DELETE", `/waiting/${row.id}`), undoLabel: gettext("Undo"),
      });
      store.reload().catch(toastProblem);
    } catch (error) {
      toastProblem(error);
    }
  };
}
