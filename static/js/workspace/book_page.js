// The page that books a GPU for a program. It also comes back if the booking was refused.
import { forgetWish, wishOpen } from "./wished_program.js";

forgetWish();
document.querySelector("[data-open-workspace]")?.addEventListener("click", wishOpen);
