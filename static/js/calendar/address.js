// The address of the page holds the view, so that it can be bookmarked and sent.
const VIEWS = new Set(["day", "4days", "week", "month"]);
const DATE = /^\d{4}-\d{2}-\d{2}$/;

/** {view, date, gpuClass, minGib, mine}. Invalid values get the default. */
export function readAddress(today, search = location.search) {
  const query = new URLSearchParams(search);
  const date = query.get("date") ?? "";
  const real = DATE.test(date) && !Number.isNaN(Date.parse(`${date}T00:00Z`))
    && new Date(`${date}T00:00Z`).toISOString().startsWith(date);
  const minGib = Number(query.get("min_gib"));
  return {
    view: VIEWS.has(query.get("view")) ? query.get("view") : "day",
    date: real ? date : today,
    gpuClass: query.get("class") ?? "",
    minGib: Number.isFinite(minGib) && minGib > 0 ? minGib : 0,
    mine: query.get("mine") === "1",
  };
}

/** Write the view into the address. The Back button undoes a new day or view. */
export function writeAddress(shown, today, { step = false } = {}) {
  const query = new URLSearchParams();
  if (shown.view !== "day") query.set("view", shown.view);
  if (shown.date !== today) query.set("date", shown.date);
  if (shown.gpuClass) query.set("class", shown.gpuClass);
  if (shown.minGib) query.set("min_gib", String(shown.minGib));
  if (shown.mine) query.set("mine", "1");
  const text = query.toString();
  const address = location.pathname + (text ? `?${text}` : "");
  if (address === location.pathname + location.search) return;
  history[step ? "pushState" : "replaceState"](null, "", address);
}
