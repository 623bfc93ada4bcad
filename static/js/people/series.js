// A new series: shows each day as it would be booked, then books all at once.
import { api } from "../api.js";
import { el, pageData } from "../dom.js";
import { credits } from "../format.js";
import { icon } from "../icons.js";
import { fromWall } from "../calendar/zone.js";
import { gettext, locale, ngettext } from "../words.js";
import { kindWord } from "../state_words.js";

const { zone } = pageData("series-config");
const form = document.getElementById("series");
const [said, section, rows, sum, skipLine, skipBox, save] = ["said", "days", "day-rows", "sum", "skip-line", "skip-refused", "save"]
  .map((id) => document.getElementById(id));
let shown = null;

const when = (iso) => new Intl.DateTimeFormat(locale, {
  weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZone: zone,
}).format(new Date(iso));

function say(error) {
  const words = [error.message, ...Object.entries(error.fields ?? {}).map(([name, why]) => `${name}: ${why}`)].join(" ");
  said.replaceChildren(el("p", { class: "notice notice-bad" }, icon("alert"), el("span", { text: words })));
}

function wish() {
  const data = new FormData(form);
  const [start, end] = [data.get("start"), data.get("end")];
  if (!start || !end) throw new Error(gettext("Enter when the first one starts and ends."));
  return {
    gpu_ids: data.getAll("gpu").map(Number),
    start: fromWall(start, zone).toISOString(), end: fromWall(end, zone).toISOString(),
    repeat: data.get("repeat"), purpose: data.get("purpose"),
    ...(data.get("membership") ? { membership: Number(data.get("membership")) } : {}),
    ...(data.get("until") ? { until: data.get("until") } : {}),
    ...(data.get("times") ? { times: Number(data.get("times")) } : {}),
  };
}

function verdict(day) {
  if (day.state === "booked") return `${kindWord(day.kind)}, ${credits(day.cost_credits)}`;
  return { later: gettext("waits"), refused: gettext("refused"), ahead: gettext("too far ahead, booked automatically later") }[day.state];
}

function reason(day) {
  const next = day.next_slot ? gettext(" Next slot that works: {time}, {kind}.", { time: when(day.next_slot.start), kind: kindWord(day.next_slot.kind) }) : "";
  if (day.state === "later") return gettext("{why} The portal tries again until it starts.", { why: day.why });
  if (day.state === "refused") return `${day.why}${next}`;
  if (day.kind === "flex" && day.taken_until) return gettext("Someone who has used less GPU time can take it until {time}.", { time: when(day.taken_until) });
  return day.displaces ? ngettext("Takes over {n} flex booking of others.", "Takes over {n} flex bookings of others.", day.displaces) : "";
}

function row(day) {
  const box = el("input", { type: "checkbox", name: "day", value: day.day, checked: day.state !== "refused", disabled: day.state === "refused", "aria-label": gettext("Book {time}", { time: when(day.start) }) });
  return el("tr", { class: `is-${day.state}` },
    el("td", {}, box), el("th", { scope: "row", class: "nowrap", text: when(day.start) }),
    el("td", {}, el("span", { class: "row tight nowrap" }, icon(day.state === "refused" ? "alert" : day.state === "booked" ? "check" : "clock"), verdict(day))),
    el("td", { class: "small", text: reason(day) }));
}

async function look() {
  said.replaceChildren();
  shown = wish();
  const found = await api("POST", "/series/preview", shown);
  rows.replaceChildren(...found.days.map(row));
  const refused = found.days.filter((day) => day.state === "refused").length;
  sum.textContent = gettext("{words}; {credits} now", { words: found.words, credits: credits(found.cost_credits) });
  skipLine.hidden = !refused;
  skipBox.checked = false;
  section.hidden = false;
  document.getElementById("days-title").focus();
}

async function book() {
  const skip = [...rows.querySelectorAll("[name=day]:not(:checked):not(:disabled)")].map((box) => box.value);
  const made = await api("POST", "/series", { ...shown, skip, skip_refused: skipBox.checked });
  location.assign(`/series/${made.id}/`);
}

async function run(act, button) {
  button.disabled = true;
  try {
    await act();
  } catch (error) {
    say(error);
    said.scrollIntoView({ block: "nearest" });
  }
  button.disabled = false;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run(look, form.querySelector("[type=submit]"));
});
form.addEventListener("input", () => { section.hidden = true; });
save.addEventListener("click", () => run(book, save));
