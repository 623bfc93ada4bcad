// "Book and open JupyterLab" on the card of a free Gpu: one click books it from now.
import { el } from "../dom.js";
import { icon } from "../icons.js";
import { wishOpen } from "../workspace/wished_program.js";
import { gettext } from "../words.js";
import { isBookable, isHeld } from "./words.js";

const form = document.getElementById("quick");
const nodes = new Set(form?.dataset.nodes.split(" "));

export function makeQuick({ id, name }) {
  if (!form) return null;
  const { title } = form.dataset;
  const words = gettext("Book {name} for 2 hours and open {title}", { name, title });
  const button = el("button", { type: "button", class: "btn btn-s", title: words, "aria-label": words }, icon("play"), title);
  button.addEventListener("click", () => {
    button.disabled = true;
    wishOpen();
    form.elements.gpu.value = id;
    form.submit();
  });
  addEventListener("pageshow", () => { button.disabled = false; });
  return button;
}

export function drawQuick(button, cell) {
  if (button) button.hidden = !(cell.state.key === "free" && isBookable(cell) && !isHeld(cell) && nodes.has(cell.info.node));
}
