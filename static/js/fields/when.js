// A day and a 24-hour time in place of the browser's own field for both, whose clock
// follows the language of the browser (AM and PM) and not the rest of the portal.
//
// <input type="datetime-local" id="start" name="start" data-when> becomes hidden and
// keeps name and value ("2026-11-24T14:00"); two fields, #start-day and #start-time,
// write it. Scripts go on setting .value and .disabled and hearing "change".

import { dayFields, readDay, readTime, timeLater } from "./day.js";
import { el } from "../dom.js";
import { gettext, locale } from "../words.js";

const HINT = gettext("Use 24 hours, for example 14:30.");
const property = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
const weekday = new Intl.DateTimeFormat(locale, { timeZone: "UTC", weekday: "short" });

function enhance(input) {
  const label = document.querySelector(`label[for="${input.id}"]`);
  const name = label ? label.firstChild.textContent.trim() : gettext("Time");
  const { required } = input;
  const day = el("input", { type: "date", class: "input when-day", id: `${input.id}-day`, required, max: "9999-12-31" });
  const time = el("input", {
    type: "text", class: "input when-time", id: `${input.id}-time`, inputmode: "numeric", required,
    autocomplete: "off", placeholder: "hh:mm", maxlength: 5, "aria-label": gettext("{name}, time (24 h)", { name }),
  });
  const weekdayName = el("span", { class: "when-weekday", "aria-hidden": "true" });
  const problem = el("span", { class: "when-error", id: `${input.id}-error`, role: "alert", hidden: true, text: HINT });
  const about = input.getAttribute("aria-describedby");
  if (about) day.setAttribute("aria-describedby", about);
  const fields = el("span", { class: "when" }, day, time, weekdayName, problem);
  if (label) label.htmlFor = day.id;
  input.after(fields);
  dayFields(fields); // its listener for a change runs first

  const show = (value) => {
    const [date, clock = ""] = value.slice(0, 16).replace(" ", "T").split("T");
    day.value = date;
    time.value = clock;
    weekdayName.textContent = readDay(day.value) ? weekday.format(Date.parse(`${day.value}T00:00Z`)) : "";
    mark(false);
  };
  const mark = (bad) => {
    problem.hidden = !bad;
    time.setCustomValidity(bad ? HINT : "");
    if (bad) time.setAttribute("aria-describedby", problem.id);
    else time.removeAttribute("aria-describedby");
    time.setAttribute("aria-invalid", String(bad));
  };
  const write = () => {
    const read = time.value.trim() ? readTime(time.value) : "";
    if (readDay(day.value) && read) input.value = `${day.value}T${read}`;
    else property.set.call(input, ""); // typed text stays visible
    mark(read === null);
    input.dispatchEvent(new Event("change", { bubbles: true }));
  };
  for (const field of [day, time]) {
    field.addEventListener("change", (event) => { event.stopPropagation(); write(); });
  }
  day.addEventListener("day:unread", () => { property.set.call(input, ""); });
  time.addEventListener("keydown", (event) => {
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const read = readTime(time.value);
    if (!way || read === null) return;
    event.preventDefault();
    time.value = timeLater(read, way * Math.max(1, Math.round((Number(input.step) || 900) / 60)));
    write();
  });

  const first = property.get.call(input);
  input.type = "hidden";
  Object.defineProperty(input, "value", {
    configurable: true,
    get() { return property.get.call(this); },
    set(value) { property.set.call(this, value); show(String(value)); },
  });
  input.value = first;
  const follow = () => {
    day.disabled = time.disabled = input.disabled;
    day.setAttribute("aria-invalid", input.getAttribute("aria-invalid") ?? "false");
  };
  new MutationObserver(follow).observe(input, { attributes: true, attributeFilter: ["disabled", "aria-invalid"] });
  follow();
}

/** Give every field under a node that asks for it (data-when) its day and its time. */
export function whenFields(under = document) {
  for (const input of under.querySelectorAll("input[type=datetime-local][data-when]")) enhance(input);
}

whenFields();
document.addEventListener("fragment-replaced", (event) => whenFields(event.target));
