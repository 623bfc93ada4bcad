// Gives server-written elements the colours and widths that only data knows:
// data-hue="210" becomes --hue, data-value="0.4" --value, data-part="0.2" --part.
// (The policy forbids style attributes; the CSSOM is free.)

import { setVars } from "./dom.js";

const NAMES = ["hue", "value", "part"];

export function paint(under = document) {
  for (const name of NAMES) {
    for (const node of under.querySelectorAll(`[data-${name}]`)) {
      setVars(node, { [`--${name}`]: node.dataset[name] });
    }
  }
}

paint();
document.addEventListener("fragment-replaced", (event) => paint(event.target));
