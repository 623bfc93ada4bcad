// The list of notices: the filter takes effect at once, and notices are dismissed in place.
import { api } from "../api.js";
import { toastProblem } from "../toast.js";
import { freshen } from "./bell.js";

const filter = document.getElementById("notice-filter");
filter.querySelector("button[type=submit]").hidden = true;
filter.addEventListener("change", () => filter.requestSubmit());
// Leave empty choices out of the address.
filter.addEventListener("formdata", ({ formData }) => {
  for (const [name, value] of [...formData]) if (!value) formData.delete(name);
});

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-read]");
  if (!button) return;
  button.disabled = true;
  try {
    await api("POST", `/notices/${button.dataset.read}/read`);
    const row = button.closest(".notice-row");
    row.classList.remove("is-unread");
    row.querySelector(".dot")?.remove();
    row.querySelector(".notice-title .visually-hidden")?.remove();
    const link = row.querySelector(".notice-acts a");
    button.remove();
    link?.focus();
    freshen();
  } catch (error) {
    button.disabled = false;
    toastProblem(error);
  }
});
