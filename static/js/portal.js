// The script of every page.

import "./shell/theme.js";
import "./shell/menu.js";
import "./time.js";
import "./hues.js";
import "./fields/forms.js";
import "./fields/day.js";
import "./fields/when.js";
import "./terms.js";
import "./shell/tour.js";
import "./shell/banners.js";
import { startBell } from "./notices/bell.js";
import { startDrafts } from "./fields/drafts.js";
import { startZoneHint } from "./shell/zone_hint.js";
import { startSearch } from "./shell/search.js";
import { startShortcuts } from "./shell/shortcuts.js";

if (document.getElementById("search")) {
  startSearch();
  startShortcuts();
}
startDrafts();
startZoneHint();
if (document.getElementById("bell")) startBell();
if (document.getElementById("live-banner")) import("./shell/banner.js");
