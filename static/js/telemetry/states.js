// The words of a Gpu's state; codes as in telemetry/domain/state.py.

const STATES = [
  // code, key (of .state-<key> and the icon), word, bucket of the head line
  [0, "unknown", "unknown", "broken"],
  [1, "free", "free", "free"],
  [2, "reserved", "reserved", "reserved"],
  [3, "busy", "busy", "busy"],
  [4, "idle", "idle", "idle"],
  [5, "intruder", "intruder", "intruder"],
  [6, "squatter", "squatter", "squatter"],
  [7, "stale", "stale", "broken"],
  [8, "lost", "lost", "broken"],
  [9, "maintenance", "maintenance", "off"],
  [10, "throttled", "throttled", "busy"],
  [11, "foreign", "foreign", "busy"],
  [12, "mig", "MIG", "off"],
].map(([code, key, word, bucket]) => Object.freeze({ code, key, word, bucket }));

/** The state behind a code; a code from a newer version is "unknown". */
export const stateOf = (code) => STATES[code] ?? STATES[0];

/** Buckets of the head line, in order; `always` ones show their zero as well. */
export const BUCKETS = [
  { key: "free", look: "free", words: "free", always: true },
  { key: "busy", look: "busy", words: "busy", always: true },
  { key: "reserved", look: "reserved", words: "reserved" },
  { key: "idle", look: "idle", words: "idle though booked", always: true },
  { key: "intruder", look: "intruder", words: "with an intruder" },
  { key: "squatter", look: "squatter", words: "used but not booked" },
  { key: "broken", look: "lost", words: "broken", always: true },
  { key: "off", look: "maintenance", words: "out of service" },
];

/** States in which the figures are old: shown grey, as "last seen". */
export const isSilent = (state) => state.key === "stale" || state.key === "lost" || state.key === "unknown";

/** What slows a Gpu down, in words; NVML's own terms are the keys. */
const THROTTLES = {
  sw_power_cap: "power cap",
  hw_slowdown: "hardware slowdown",
  sw_thermal: "heat",
  hw_thermal: "heat (hardware)",
  hw_power_brake: "power brake",
  sync_boost: "sync boost",
  display_clock: "display clock",
  applications_clocks: "clocks set by the operator",
};

/** "slowed by power cap, heat" or "". Idling is not being slowed. */
export function throttleWords(reasons) {
  const words = (reasons ?? []).filter((r) => r !== "gpu_idle").map((r) => THROTTLES[r] ?? r);
  return words.length ? `slowed by ${words.join(", ")}` : "";
}
