// What every page runs.

import "./theme.js";
import "./menu.js";
import "./time.js";
import "./hues.js";
import "./forms.js";
import "./day.js";
import "./when.js";
import "./terms.js";
import "./tour.js";
import "./banners.js";
import { startBell } from "./notices/bell.js";
import { startDrafts } from "./drafts.js";
import { startZoneHint } from "./zone_hint.js";
import { startSearch } from "./search.js";
import { startShortcuts } from "./shortcuts.js";

if (document.getElementById("search")) {
  startSearch();
  startShortcuts();
}
startDrafts();
startZoneHint();
if (document.getElementById("bell")) startBell();
if (document.getElementById("live-banner")) import("./banner.js");
