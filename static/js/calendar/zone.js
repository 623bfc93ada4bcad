// The site's clock. A "wall" is its time, to the minute and without a zone:
// "2026-11-21T14:00". Inputs and the timeline use walls. The API uses instants.
const clocks = new Map();

function clock(zone) {
  if (!clocks.has(zone)) {
    clocks.set(zone, new Intl.DateTimeFormat("en-CA", {
      timeZone: zone, hourCycle: "h23", year: "numeric", month: "2-digit",
      day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    }));
  }
  return clocks.get(zone);
}

function fields(at, zone) {
  const found = {};
  for (const { type, value } of clock(zone).formatToParts(at)) found[type] = value;
  return found;
}

/** An instant (Date, or ISO text with its zone) as the site's clock shows it. */
export function toWall(at, zone) {
  const f = fields(at instanceof Date ? at : new Date(at), zone);
  return `${f.year}-${f.month}-${f.day}T${f.hour}:${f.minute}`;
}

/** Minutes east of UTC at an instant. */
export function offsetMinutes(at, zone) {
  const f = fields(at, zone);
  const shown = Date.UTC(f.year, f.month - 1, f.day, f.hour, f.minute, f.second);
  return Math.round((shown - Math.floor(at.getTime() / 1000) * 1000) / 60000);
}

/** "+01:00" for the offset at an instant, as EventCalendar needs it for its line
 *  of now. It treats an offset of zero as missing and then uses the browser's
 *  zone, so zero is written as one minute: less than a pixel. */
export function offsetText(at, zone) {
  const minutes = offsetMinutes(at, zone) || 1;
  const hours = String(Math.floor(Math.abs(minutes) / 60)).padStart(2, "0");
  const rest = String(Math.abs(minutes) % 60).padStart(2, "0");
  return `${minutes < 0 ? "-" : "+"}${hours}:${rest}`;
}

const two = (number) => String(number).padStart(2, "0");

/** The wall of a Date of EventCalendar, whose local fields hold the wall. */
export function wallOf(at) {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** The fields of a wall as a time in UTC, for arithmetic only. */
export function wallMillis(wall) {
  return Date.parse(`${wall.slice(0, 16)}:00Z`);
}

/** The instant at which the site's clock shows a wall.
 *  The clock jumps twice a year. A wall in the hour that is left out means the
 *  hour after it, one in the hour that comes twice means the second time. */
export function fromWall(wall, zone) {
  const millis = wallMillis(wall);
  const guess = new Date(millis - offsetMinutes(new Date(millis), zone) * 60000);
  return new Date(millis - offsetMinutes(guess, zone) * 60000);
}

/** The instant of a wall. If the wall is unchanged since the booking, the booked second. */
export function exact(wall, booked, zone) {
  return booked && toWall(booked, zone) === wall ? new Date(booked) : fromWall(wall, zone);
}

/** A wall plus a number of seconds, which may be negative. */
export function addWall(wall, seconds) {
  return new Date(wallMillis(wall) + seconds * 1000).toISOString().slice(0, 16);
}

/** Seconds on the clock from one wall to another. */
export function wallSeconds(from, to) {
  return (wallMillis(to) - wallMillis(from)) / 1000;
}

/** The latest wall on the grid that is not after this one. Days start the grid. */
export function floorWall(wall, gridSeconds) {
  const midnight = wallMillis(`${wall.slice(0, 10)}T00:00`);
  const grid = gridSeconds * 1000;
  const steps = Math.floor((wallMillis(wall) - midnight) / grid);
  return new Date(midnight + steps * grid).toISOString().slice(0, 16);
}

/** The first wall on the grid that is not before this one. */
export function ceilWall(wall, gridSeconds) {
  const floor = floorWall(wall, gridSeconds);
  return floor === wall ? wall : addWall(floor, gridSeconds);
}

/** The latest wall on the portal's grid that is not after this one. The grid counts in
 *  UTC: where a zone is half an hour off, its steps are not the clock's full hours. */
export function floorGrid(wall, gridSeconds, zone) {
  const grid = gridSeconds * 1000;
  return toWall(new Date(Math.floor(fromWall(wall, zone).getTime() / grid) * grid), zone);
}

/** The first wall on the portal's grid that is not before this one. */
export function ceilGrid(wall, gridSeconds, zone) {
  const grid = gridSeconds * 1000;
  return toWall(new Date(Math.ceil(fromWall(wall, zone).getTime() / grid) * grid), zone);
}

/** The Monday that a date's week begins with, as a wall. */
export function mondayOf(date) {
  const midnight = `${date}T00:00`;
  return addWall(midnight, -((new Date(wallMillis(midnight)).getUTCDay() + 6) % 7) * 86400);
}

const DAY = 86400;
const DAYS = { day: 1, "4days": 4 };
const BEFORE_NOW = 6 * 3600;

/** [first wall, wall after the last] of a view. With `now` (a wall), the day of now
 *  rolls: it begins early enough that now is at the left quarter. A month
 *  is shown in whole weeks, six of them. */
export function rangeOf(view, date, now = "") {
  if (view === "day" && now.startsWith(date)) {
    const start = floorWall(addWall(now, -BEFORE_NOW), 3600);
    return [start, addWall(start, DAY)];
  }
  if (DAYS[view]) return [`${date}T00:00`, addWall(`${date}T00:00`, DAYS[view] * DAY)];
  const monday = mondayOf(view === "month" ? `${date.slice(0, 7)}-01` : date);
  return [monday, addWall(monday, (view === "month" ? 42 : 7) * DAY)];
}
