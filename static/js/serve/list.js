// The list of served models: deletes a kept file.

import { api } from "../api.js";
import { ask, toastProblem } from "../toast.js";
import { gettext } from "../words.js";

for (const button of document.querySelectorAll("[data-drop]")) {
  button.addEventListener("click", async () => {
    const sure = await ask({
      title: gettext("Delete {name}?", { name: button.dataset.name }),
      text: gettext("The file is deleted from the portal. Stop the endpoints that serve it first."),
      yes: "Delete",
    });
    if (!sure) return;
    try {
      await api("DELETE", `/serve/files/${button.dataset.drop}`);
      location.reload();
    } catch (error) {
      toastProblem(error);
    }
  });
}
