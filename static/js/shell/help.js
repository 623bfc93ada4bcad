// Prints the shortcuts of every page into the help page.

import { shortcutLists } from "./shortcuts.js";

document.getElementById("shortcut-list").append(...shortcutLists());
