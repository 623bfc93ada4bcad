// Gives elements from the server the colours and widths in their data attributes:
// data-hue="210" becomes --hue, data-value="0.4" --value, data-part="0.2" --part.
// (The content security policy forbids style attributes, but allows the CSSOM.)

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
