// The calendar's keyboard shortcuts; "?" lists them with the others.
import { registerShortcuts } from "../shortcuts.js";

/** toolbar: go(way); change(fields, step); today(); begin(): a new booking. */
export function registerCalendarKeys({ toolbar, change, today, begin }) {
  const view = (name) => () => change({ view: name }, true);
  registerShortcuts("Calendar", [
    { keys: "n", text: "New booking", run: begin },
    { keys: "t", text: "Go to today", run: () => change({ date: today() }, true) },
    { keys: "j", text: "Later", run: () => toolbar.go(1) },
    { keys: "k", text: "Earlier", run: () => toolbar.go(-1) },
    { keys: "d", text: "Day", run: view("day") },
    { keys: "4", text: "4 days", run: view("4days") },
    { keys: "w", text: "Week", run: view("week") },
    { keys: "m", text: "Month", run: view("month") },
  ]);
}
