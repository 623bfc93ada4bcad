// Lists the shortcuts of every page in the help page.

import { shortcutLists } from "./shortcuts.js";

document.getElementById("shortcut-list").append(...shortcutLists());
