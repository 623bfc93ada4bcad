// Figures for the screen, in the same words as telemetry/protocol/units.py.

import { ngettext } from "./words.js";

export const UNKNOWN = "–";
const GIB = 2 ** 30;

function short(value) {
  return Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "");
}

/** Bytes as GiB without the unit: "61.5". */
export function gibFigure(bytes) {
  return bytes === null || bytes === undefined ? UNKNOWN : short(bytes / GIB);
}

/** Bytes as GiB: "80 GiB". */
export function gib(bytes) {
  return bytes === null || bytes === undefined ? UNKNOWN : `${short(bytes / GIB)} GiB`;
}

export function bytes(size) {
  if (size === null || size === undefined) return UNKNOWN;
  for (const [step, unit] of [[2 ** 40, "TiB"], [GIB, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (size >= step) return `${short(size / step)} ${unit}`;
  }
  return `${size} B`;
}

export function pct(value) {
  return value === null || value === undefined ? UNKNOWN : `${Math.round(value)} %`;
}

/** Energy in kWh, or in Wh below 0.1 kWh: "3.46 kWh", "42 Wh". */
export function energy(kwh) {
  if (kwh === null || kwh === undefined) return UNKNOWN;
  if (kwh < 0.1) return `${(kwh * 1000).toFixed(kwh < 0.01 ? 1 : 0)} Wh`;
  return `${kwh.toFixed(kwh < 10 ? 2 : 0)} kWh`;
}

/** Hours or credits as a number: at most one decimal. Small amounts by their first figure. */
export function hoursFigure(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (Math.abs(value) >= 0.0001 && Math.abs(value) < 0.095) return String(Number(value.toPrecision(1)));
  return value.toFixed(1).replace(/\.0$/, "");
}

/** Weighted GPU-hours as the API gives them: "80 credits", "1 credit". */
export function credits(value) {
  const figure = hoursFigure(value);
  return ngettext("{figure} credit", "{figure} credits", Math.abs(Number(figure)), { figure });
}

/** Unweighted GPU-hours: "8 GPU-hours". */
export function gpuHours(value) {
  const figure = hoursFigure(value);
  return ngettext("{figure} GPU-hour", "{figure} GPU-hours", Number(figure), { figure });
}

/** Megahertz as "1.41 GHz". */
export function ghz(mhz) {
  return mhz === null || mhz === undefined ? UNKNOWN : `${(mhz / 1000).toFixed(2)} GHz`;
}

/** A duration in its two largest units: "1 h 5 min". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  const [minutes, hours, days] = [Math.floor(whole / 60) % 60, Math.floor(whole / 3600) % 24, Math.floor(whole / 86400)];
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return `${minutes} min`;
}
