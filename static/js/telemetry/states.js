// The words of a Gpu's state; codes as in telemetry/domain/state.py.

const STATES = [
  // code, key (of .state-<key> and the icon), word, bucket of the head line
  [0, "unknown", "unknown", "unknown"],
  [1, "free", "free", "free"],
  [2, "reserved", "reserved", "reserved"],
  [3, "busy", "busy", "busy"],
  [4, "idle", "booked but idle", "idle"],
  [5, "intruder", "someone else’s process", "intruder"],
  [6, "squatter", "in use without a booking", "squatter"],
  [7, "stale", "no data", "stale"],
  [8, "lost", "lost", "lost"],
  [9, "maintenance", "out of service", "maintenance"],
  [10, "throttled", "throttled", "throttled"],
  [11, "foreign", "another system", "foreign"],
  [12, "mig", "MIG", "mig"],
].map(([code, key, word, bucket]) => Object.freeze({ code, key, word, bucket }));

/** The state behind a code; a code from a newer version is "unknown". */
export const stateOf = (code) => STATES[code] ?? STATES[0];

/** Buckets of the head line, in order; `always` ones show their zero as well. Each
    has the word of its state's cards. */
export const BUCKETS = [
  { key: "free", look: "free", words: "free", always: true },
  { key: "busy", look: "busy", words: "busy", always: true },
  { key: "throttled", look: "throttled", words: "throttled" },
  { key: "reserved", look: "reserved", words: "reserved" },
  { key: "idle", look: "idle", words: "booked but idle", always: true },
  { key: "intruder", look: "intruder", words: "someone else’s process" },
  { key: "squatter", look: "squatter", words: "in use without a booking" },
  { key: "lost", look: "lost", words: "lost", always: true },
  { key: "stale", look: "stale", words: "no data" },
  { key: "unknown", look: "unknown", words: "unknown" },
  { key: "maintenance", look: "maintenance", words: "out of service" },
  { key: "foreign", look: "foreign", words: "another system" },
  { key: "mig", look: "mig", words: "MIG" },
];

/** States in which the figures are old: shown grey, as "last seen". */
export const isSilent = (state) => state.key === "stale" || state.key === "lost" || state.key === "unknown";

/** What throttles a Gpu, in words; NVML's own terms are the keys. */
const THROTTLES = {
  sw_power_cap: "power limit",
  hw_slowdown: "hardware slowdown",
  sw_thermal: "heat",
  hw_thermal: "heat (hardware)",
  hw_power_brake: "power brake",
  sync_boost: "sync boost",
  display_clock: "display clock",
  applications_clocks: "clocks set by the admin",
};

/** "throttled: power limit, heat" or "". An idle Gpu is not throttled. */
export function throttleWords(reasons) {
  const words = (reasons ?? []).filter((r) => r !== "gpu_idle").map((r) => THROTTLES[r] ?? r);
  return words.length ? `throttled: ${words.join(", ")}` : "";
}
