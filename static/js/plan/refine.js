// The symbolic estimate, which follows the one in closed form, over /ws/plans/.
//
// const refining = refine({ onChange, onRefused });
// refining.ask({ known: "gpt2", workload: {...}, replicas: 1 });   (or model: number)
// onChange gets {key, state, doing, done_ratio, answer, problem}; onRefused {field: text}.

import { connect } from "../live.js";

const SETTLE_MS = 600;

export function refine({ onChange, onRefused }) {
  let wanted = null;
  let key = "";
  let open = false;
  let timer = 0;
  let running = false;
  let asked = false;

  const send = () => {
    if (open && wanted) asked = socket.send({ refine: wanted });
  };
  const socket = connect("/ws/plans/", {
    onJson: (message) => {
      if (message.type === "refinement.refused") onRefused(message.problems);
      // Until the new question is sent, messages are about the old one.
      if (message.type !== "refinement.changed" || !asked) return;
      key = message.refinement.key;
      running = ["waiting", "running"].includes(message.refinement.state);
      onChange(message.refinement);
    },
    onState: ({ word }) => {
      open = word === "open";
      // Ask again after a lost connection: the answer may have come meanwhile.
      if (open) queueMicrotask(send);
    },
  });
  return {
    ask(question) {
      // The last question is not needed any more.
      if (open && key && running) socket.send({ cancel: key });
      wanted = question;
      key = "";
      running = asked = false;
      clearTimeout(timer);
      timer = setTimeout(send, SETTLE_MS);
    },
    cancel() {
      if (open && key) socket.send({ cancel: key });
    },
    close: () => socket.close(),
  };
}
