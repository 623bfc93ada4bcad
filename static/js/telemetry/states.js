// Names of a Gpu's states. The codes are those of telemetry/protocol/gpu_state.py.

import { gettext } from "../words.js";

const STATES = [
  // code, key (of .state-<key> and the icon), word, bucket of the head line
  [0, "unknown", gettext("unknown"), "unknown"],
  [1, "free", gettext("free"), "free"],
  [2, "reserved", gettext("reserved"), "reserved"],
  [3, "busy", gettext("busy"), "busy"],
  [4, "idle", gettext("booked but idle"), "idle"],
  [5, "intruder", gettext("someone else’s process"), "intruder"],
  [6, "squatter", gettext("in use without a booking"), "squatter"],
  [7, "stale", gettext("no data"), "stale"],
  [8, "lost", gettext("lost"), "lost"],
  [9, "maintenance", gettext("out of service"), "maintenance"],
  [10, "throttled", gettext("throttled"), "throttled"],
  [11, "foreign", gettext("another system"), "foreign"],
  [12, "mig", "MIG", "mig"],
].map(([code, key, word, bucket]) => Object.freeze({ code, key, word, bucket }));

/** The state of a code. A code from a newer version is "unknown". */
export const stateOf = (code) => STATES[code] ?? STATES[0];

/** Buckets of the head line, in order; `always` ones show their zero as well. Each
    has the word of its state's cards. */
export const BUCKETS = [
  { key: "free", look: "free", words: gettext("free"), always: true },
  { key: "busy", look: "busy", words: gettext("busy"), always: true },
  { key: "throttled", look: "throttled", words: gettext("throttled") },
  { key: "reserved", look: "reserved", words: gettext("reserved") },
  { key: "idle", look: "idle", words: gettext("booked but idle"), always: true },
  { key: "intruder", look: "intruder", words: gettext("someone else’s process") },
  { key: "squatter", look: "squatter", words: gettext("in use without a booking") },
  { key: "lost", look: "lost", words: gettext("lost"), always: true },
  { key: "stale", look: "stale", words: gettext("no data") },
  { key: "unknown", look: "unknown", words: gettext("unknown") },
  { key: "maintenance", look: "maintenance", words: gettext("out of service") },
  { key: "foreign", look: "foreign", words: gettext("another system") },
  { key: "mig", look: "mig", words: "MIG" },
];

/** States with old figures, which are shown grey with "last seen". */
export const isSilent = (state) => state.key === "stale" || state.key === "lost" || state.key === "unknown";

/** Reasons why a Gpu throttles, as text. The keys are NVML's terms. */
const THROTTLES = {
  sw_power_cap: gettext("power limit"),
  hw_slowdown: gettext("hardware slowdown"),
  sw_thermal: gettext("heat"),
  hw_thermal: gettext("heat (hardware)"),
  hw_power_brake: gettext("power brake"),
  sync_boost: gettext("sync boost"),
  display_clock: gettext("display clock"),
  applications_clocks: gettext("clocks set by the admin"),
};

/** "throttled: power limit, heat" or "". An idle Gpu is not throttled. */
export function throttleWords(given) {
  const reasons = throttleReasons(given);
  return reasons && gettext("throttled: {reasons}", { reasons });
}

/** "power limit, heat" or "". */
export const throttleReasons = (reasons) =>
  (reasons ?? []).filter((r) => r !== "gpu_idle").map((r) => THROTTLES[r] ?? r).join(", ");

/** "live, 0.4 s" or "late, 7.0 s": the age of the shown figures. */
export const liveWords = (late, ageSeconds) => (late
  ? gettext("late, {seconds} s", { seconds: ageSeconds.toFixed(1) })
  : gettext("live, {seconds} s", { seconds: ageSeconds.toFixed(1) }));
