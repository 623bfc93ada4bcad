// The calendar's keyboard shortcuts; "?" lists them with the others.
import { registerShortcuts } from "../shell/shortcuts.js";
import { gettext } from "../words.js";

/** toolbar: go(way); change(fields, step); today(); begin(): a new booking. */
export function registerCalendarKeys({ toolbar, change, today, begin }) {
  const view = (name) => () => change({ view: name }, true);
  registerShortcuts(gettext("Calendar"), [
    { keys: "n", text: gettext("New booking"), run: begin },
    { keys: "t", text: gettext("Go to today"), run: () => change({ date: today() }, true) },
    { keys: "j", text: gettext("Later"), run: () => toolbar.go(1) },
    { keys: "k", text: gettext("Earlier"), run: () => toolbar.go(-1) },
    { keys: "d", text: gettext("Day"), run: view("day") },
    { keys: "4", text: gettext("4 days"), run: view("4days") },
    { keys: "w", text: gettext("Week"), run: view("week") },
    { keys: "m", text: gettext("Month"), run: view("month") },
  ]);
}
