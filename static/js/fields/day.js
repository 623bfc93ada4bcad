// A day as text ("2026-11-24") with a small calendar behind a button. It replaces the
// browser's field, which writes days in the browser's language (11/24/2026). Fields for a month
// ("2026-11") and a time of the day ("14:30") are replaced, too.
//
// <input type="date"> becomes a text field: it keeps its id, name, value and "change",
// and understands 2026-11-24, 20261124, 24.11.2026 and 24.11. Arrow keys go a day on.

import { el } from "../dom.js";
import { icon } from "../icons.js";
import { serverNow, siteZone } from "../time.js";
import { gettext, locale } from "../words.js";

const DAY_MS = 86_400_000;
const WEEK = 7;
const WEEKS_SHOWN = 6;
const ISO = /^(\d{4})-?(\d{2})-?(\d{2})$/;
const DOTTED = /^(\d{1,2})\.\s?(\d{1,2})\.\s?(\d{4})?$/;
const MONTH = /^(\d{4})-?(\d{2})$/;
const TIME = /^(\d{1,2})(?:[:.h ]?(\d{2}))?$/;

const named = (options) => new Intl.DateTimeFormat(locale, { timeZone: "UTC", ...options });
const monthName = named({ month: "long", year: "numeric" });
const shortMonth = named({ month: "short" });
const longDay = named({ weekday: "long", day: "numeric", month: "long", year: "numeric" });
const weekdayName = named({ weekday: "short" });

const at = (iso) => Date.parse(`${iso}T00:00Z`);
const isoOf = (ms) => new Date(ms).toISOString().slice(0, 10);
const pad = (number, length = 2) => String(number).padStart(length, "0");

/** Today in the zone of the page. */
const today = () => new Intl.DateTimeFormat("sv-SE", { timeZone: siteZone }).format(serverNow());

/** A day in ISO 8601, or null if it does not exist. */
function existing(year, month, day) {
  const iso = `${pad(year, 4)}-${pad(month)}-${pad(day)}`;
  const ms = at(iso);
  return Number.isNaN(ms) || isoOf(ms) !== iso ? null : iso;
}

/** Typed text as "2026-11-24", or null if it is not a day. */
export function readDay(text) {
  const iso = ISO.exec(text.trim());
  if (iso) return existing(...iso.slice(1));
  const dotted = DOTTED.exec(text.trim());
  if (!dotted) return null;
  const [, day, month, year] = dotted;
  if (year) return existing(year, month, day);
  const now = today();
  const soon = existing(now.slice(0, 4), month, day);
  return soon && soon < now ? existing(Number(now.slice(0, 4)) + 1, month, day) : soon;
}

/** Typed text as "2026-11", or null if it is not a month. */
function readMonth(text) {
  const [, year, month] = MONTH.exec(text.trim()) ?? [];
  return year && existing(year, month, 1) ? `${year}-${month}` : null;
}

/** "9", "930", "9.30" and "09:30" as "09:30", or null if it is not a time of a day. */
export function readTime(text) {
  const [, hours, minutes = "00"] = TIME.exec(text.trim()) ?? [];
  if (hours === undefined || Number(hours) > 23 || Number(minutes) > 59) return null;
  return `${hours.padStart(2, "0")}:${minutes}`;
}

/** A time plus a number of minutes, within its day. */
export function timeLater(time, minutes) {
  const [hours, rest] = time.split(":").map(Number);
  const day = 24 * 60;
  const total = (((hours * 60 + rest + minutes) % day) + day) % day;
  return `${pad(Math.floor(total / 60))}:${pad(total % 60)}`;
}

/** A month later or earlier, on the same day or on the last day of the month. */
function monthLater(iso, months) {
  const [year, month, day] = iso.split("-").map(Number);
  const last = new Date(Date.UTC(year, month + months, 0)).getUTCDate();
  return isoOf(Date.UTC(year, month - 1 + months, Math.min(day, last)));
}

const dayLater = (iso, days) => isoOf(at(iso) + days * DAY_MS);

/** Kinds of fields: parsing, step of an arrow key, and explanation. */
const KINDS = {
  date: {
    read: readDay, step: dayLater, length: 10, picker: true,
    hint: () => gettext("Write the day as year-month-day, for example 2026-11-24."),
    placeholder: () => gettext("yyyy-mm-dd"),
  },
  month: {
    read: readMonth, step: (month, by) => monthLater(`${month}-01`, by).slice(0, 7), length: 7, picker: true,
    hint: () => gettext("Write the month as year-month, for example 2026-11."),
    placeholder: () => gettext("yyyy-mm"),
  },
  time: {
    read: readTime, step: (time, by) => timeLater(time, 15 * by), length: 5, picker: false,
    hint: () => gettext("Use 24 hours, for example 14:30."),
    placeholder: () => gettext("hh:mm"),
  },
};

function enhance(input) {
  const kind = KINDS[input.type];
  const monthly = input.type === "month";
  const { value } = input;
  const name = input.getAttribute("aria-label") || input.labels?.[0]?.firstChild?.textContent.trim() || gettext("Day");
  const limits = { min: input.min, max: input.max };
  input.type = "text";
  input.value = value.slice(0, kind.length);
  input.placeholder = kind.placeholder();
  input.inputMode = "numeric";
  input.autocomplete = "off";
  input.maxLength = Math.max(kind.length, 10);
  input.spellcheck = false;
  const wrap = el("span", { class: `day${kind.picker ? "" : " day-time"}` });
  const problem = el("span", { class: "when-error", role: "alert", hidden: true });
  input.before(wrap);
  wrap.append(input);
  if (kind.picker) {
    const button = el("button", {
      type: "button", class: "btn btn-quiet btn-icon btn-s day-open", "aria-haspopup": "dialog", "aria-expanded": "false",
      "aria-label": monthly ? gettext("{name}: choose a month", { name }) : gettext("{name}: choose a day", { name }),
      on: { click: () => openPicker({ input, button, wrap, monthly, limits, choose }) },
    }, icon("calendar"));
    wrap.append(button);
    const follow = () => { button.disabled = input.disabled; };
    new MutationObserver(follow).observe(input, { attributeFilter: ["disabled"] });
    follow();
  }
  wrap.append(problem);
  const about = input.getAttribute("aria-describedby");
  problem.id = `${input.id || input.name}-day-error`;

  const mark = (text) => {
    problem.hidden = !text;
    problem.textContent = text;
    input.setCustomValidity(text);
    if (text) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    const described = [about, text && problem.id].filter(Boolean).join(" ");
    if (described) input.setAttribute("aria-describedby", described);
    else input.removeAttribute("aria-describedby");
  };
  // Listeners receive a change only with a valid day or an empty one.
  const check = (event) => {
    const typed = input.value.trim();
    const read = typed ? kind.read(typed) : "";
    if (read === null) {
      event?.stopImmediatePropagation();
      mark(kind.hint());
      input.dispatchEvent(new CustomEvent("day:unread"));
      return false;
    }
    if (input.value !== read) input.value = read;
    if (!problem.hidden) mark("");
    return true;
  };
  function choose(text) {
    input.value = text;
    for (const type of ["input", "change"]) input.dispatchEvent(new Event(type, { bubbles: true }));
  }
  input.addEventListener("change", check);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { check(); return; }
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const read = way && kind.read(input.value.trim() || (monthly ? today().slice(0, 7) : today()));
    if (!read) return;
    event.preventDefault();
    choose(kind.step(read, way));
  });
}

const outside = (iso, { min, max }) => Boolean((min && iso < min) || (max && iso > max));

/** A calendar under a field; Escape and a press elsewhere close it. */
function openPicker({ input, button, wrap, monthly, limits, choose }) {
  const chosen = monthly ? readMonth(input.value) && `${readMonth(input.value)}-01` : readDay(input.value);
  let here = chosen || today();
  const title = el("strong", { class: "grow", id: "day-title", "aria-live": "polite" });
  const grid = el("div", { class: monthly ? "day-grid day-months" : "day-grid", role: "grid", "aria-labelledby": "day-title" });
  const page = monthly ? 12 : 1;
  const turn = (way) => { here = monthLater(here, way * page); paint(); };
  const turner = (way, label, sign) => el("button", {
    type: "button", class: "btn btn-quiet btn-icon btn-s", "aria-label": label, on: { click: () => turn(way) },
  }, icon(sign));
  const box = el("div", { class: "day-picker", popover: "auto", role: "dialog", "aria-label": monthly ? gettext("Choose a month") : gettext("Choose a day") },
    el("div", { class: "day-head" },
      turner(-1, monthly ? gettext("Previous year") : gettext("Previous month"), "chevron-left"), title,
      turner(1, monthly ? gettext("Next year") : gettext("Next month"), "chevron-right")),
    grid);

  const cell = (iso, text, label, classes) => el("button", {
    type: "button", role: "gridcell", class: classes.filter(Boolean).join(" ") || null, "data-day": iso, "aria-label": label,
    tabindex: "-1", disabled: outside(monthly ? iso.slice(0, 7) : iso, limits),
    "aria-selected": String(iso === chosen), "aria-current": iso === today() ? "date" : null,
    text, on: { click: () => { choose(monthly ? iso.slice(0, 7) : iso); box.hidePopover(); } },
  });
  function days() {
    const first = at(`${here.slice(0, 7)}-01`);
    const monday = first - ((new Date(first).getUTCDay() + 6) % WEEK) * DAY_MS;
    const head = el("div", { role: "row" }, ...Array.from({ length: WEEK }, (_, number) =>
      el("span", { role: "columnheader", text: weekdayName.format(monday + number * DAY_MS) })));
    const rows = Array.from({ length: WEEKS_SHOWN }, (_, week) => el("div", { role: "row" },
      ...Array.from({ length: WEEK }, (_, number) => {
        const ms = monday + (week * WEEK + number) * DAY_MS;
        const iso = isoOf(ms);
        return cell(iso, String(new Date(ms).getUTCDate()), longDay.format(ms), [iso.slice(0, 7) !== here.slice(0, 7) && "is-other"]);
      })));
    title.textContent = monthName.format(at(here));
    return [head, ...rows];
  }
  function months() {
    const year = here.slice(0, 4);
    title.textContent = year;
    return [0, 3, 6, 9].map((first) => el("div", { role: "row" }, ...[1, 2, 3].map((number) => {
      const iso = `${year}-${pad(first + number)}-01`;
      const text = shortMonth.format(at(iso));
      return cell(iso, text, `${text} ${year}`, []);
    })));
  }
  const target = () => grid.querySelector(`[data-day="${monthly ? `${here.slice(0, 7)}-01` : here}"]`);
  function paint() {
    grid.replaceChildren(...(monthly ? months() : days()));
    if (target()) target().tabIndex = 0;
  }
  grid.addEventListener("keydown", (event) => {
    const weekday = (new Date(at(here)).getUTCDay() + 6) % WEEK;
    const step = monthly ? (by) => monthLater(here, by) : (by) => dayLater(here, by);
    const next = {
      ArrowRight: () => step(1), ArrowLeft: () => step(-1),
      ArrowDown: () => step(monthly ? 3 : WEEK), ArrowUp: () => step(monthly ? -3 : -WEEK),
      PageDown: () => monthLater(here, page), PageUp: () => monthLater(here, -page),
      Home: () => (monthly ? `${here.slice(0, 4)}-01-01` : dayLater(here, -weekday)),
      End: () => (monthly ? `${here.slice(0, 4)}-12-01` : dayLater(here, 6 - weekday)),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    here = next();
    paint();
    target()?.focus();
  });
  box.addEventListener("toggle", (event) => {
    button.setAttribute("aria-expanded", String(event.newState === "open"));
    if (event.newState === "open") return;
    const inside = box.contains(document.activeElement) || document.activeElement === document.body;
    box.remove();
    if (inside) button.focus();
  });
  wrap.append(box);
  paint();
  box.showPopover();
  const place = button.getBoundingClientRect();
  const left = Math.min(place.right - box.offsetWidth, innerWidth - box.offsetWidth - 8);
  const below = place.bottom + 6;
  const top = below + box.offsetHeight > innerHeight ? Math.max(8, place.top - box.offsetHeight - 6) : below;
  box.style.setProperty("left", `${Math.max(8, left)}px`);
  box.style.setProperty("top", `${top}px`);
  target()?.focus();
}

/** Give every field of a day, a month or a time under a node its text. */
export function dayFields(under = document) {
  for (const input of under.querySelectorAll("input[type=date], input[type=month], input[type=time]")) enhance(input);
}

dayFields();
document.addEventListener("fragment-replaced", (event) => dayFields(event.target));
