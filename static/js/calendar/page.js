// The calendar page: connects its parts, which have separate modules.
import { api } from "../api.js";
import { connect } from "../live.js";
import { pageData } from "../dom.js";
import { serverNow } from "../time.js";
import { toast, toastProblem } from "../toast.js";
import { Actions } from "./actions.js";
import { readAddress, writeAddress } from "./address.js";
import { Details } from "./drawer/details.js";
import { Draft } from "./draft.js";
import { Drawer } from "./drawer/drawer.js";
import { Find } from "./drawer/find.js";
import { HoverCard } from "./timeline/hovercard.js";
import { Form } from "./drawer/form.js";
import { keepDraft, keptDraft } from "./drawer/kept.js";
import { registerCalendarKeys } from "./keys.js";
import { watchLegend } from "./legend.js";
import { Stage } from "./stage.js";
import { Store } from "./store.js";
import { makeSubmit } from "./drawer/submit.js";
import { watchVouchers } from "./drawer/vouchers.js";
import { Toolbar } from "./toolbar.js";
import { Verdict } from "./drawer/verdict.js";
import { makeWait } from "./drawer/waitfor.js";
import { showZone } from "./zonehint.js";
import { ceilGrid, exact, floorGrid, rangeOf, toWall } from "./zone.js";
import { gettext } from "../words.js";

const config = pageData("calendar-config");
const node = (id) => document.getElementById(id);
const nowWall = () => toWall(new Date(serverNow()), config.zone);
const today = () => nowWall().slice(0, 10);

const store = new Store();
const draft = new Draft({ zone: config.zone, limits: config, membership: config.memberships[0]?.id ?? null, nowWall, partners: (id) => store.partners(id) });
const actions = new Actions({ store, zone: config.zone, nowWall, gridSeconds: config.grid_seconds });
let shown = readAddress(today());
// Show the day of a draft from another page, unless the address contains a day.
const drafted = config.draft?.start?.slice(0, 10);
if (drafted && !new URLSearchParams(location.search).has("date")) shown = { ...shown, date: drafted };
store.filters = { gpuClass: shown.gpuClass, minGib: shown.minGib, mine: shown.mine };

const drawer = new Drawer(node("drawer"), {
  onClose: (part) => { if (part === "form") draft.close("drawer"); details.shownId = null; },
});
const details = new Details(node("details"), {
  store, config, nowWall, actions, close: () => drawer.close(),
  change: (reservation) => { draft.edit(reservation); drawer.open("form", { focus: "#start-day" }); },
});
const verdict = new Verdict(node("verdict"), { draft, store, config, nowWall, take: (slot) => { draft.set(slot, "slot"); stage.reveal(); }, wait: config.urls.waiting ? makeWait({ store, config, drawer }) : null });
watchVouchers(node("voucher"), { draft, config });
const submit = makeSubmit({ button: node("book"), draft, actions, drawer, verdict, config });
new Form(node("booking"), { draft, store, config, nowWall, submit });
const toolbar = new Toolbar(node("toolbar"), { store, today, shown, change });
new Find(node("find"), { store, config, nowWall, membership: () => draft.membership, take: (slot) => pick(slot.gpuIds, slot.start, slot.end, "#book") });
const stage = new Stage({ timelineNode: node("timeline"), agendaNode: node("agenda"), monthNode: node("month") }, {
  store, draft, zone: config.zone, gridSeconds: config.grid_seconds, nowWall,
  on: {
    day: (date) => change({ view: "day", date }, true),
    // The timeline counts its steps from the shown midnight, the grid counts in UTC.
    pick: (gpuIds, start, end) => pick(gpuIds, floorGrid(start, config.grid_seconds, config.zone), ceilGrid(end, config.grid_seconds, config.zone)),
    open, move, moveDraft: (wanted) => draft.set(wanted, "pointer"),
    press: (gpuIds, pressed) => {
      const start = floorGrid(pressed, config.grid_seconds, config.zone);
      pick(gpuIds, start, draft.endOf(start));
    },
  },
}, shown);

// The version of a booking may grow while its owner changes it, for example by a check-in.
// The change stays valid as long as the times and GPUs are the same.
store.addEventListener("changed", ({ detail: { id } }) => {
  const [known, fresh] = [draft.editing, store.reservations.get(id)];
  if (known?.id !== id || !fresh) return;
  const what = (one) => JSON.stringify([one.start, one.end, one.gpu_ids, one.state]);
  if (what(known) === what(fresh)) draft.editing = fresh;
});

/** Set the GPUs and the time of the draft. Typed fields stay. */
function pick(gpuIds, start, end, focus = null) {
  if (!gpuIds.length) { toast(gettext("These GPUs are not available. Choose others.")); return; }
  const fields = { gpuIds, start, end };
  if (draft.open && !draft.editing) draft.set(fields, "pointer");
  else draft.begin(fields, "pointer");
  drawer.open("form", { focus });
  if (focus) stage.reveal();
}

// Show a day that is typed or chosen from a card.
draft.addEventListener("change", ({ detail: { source } }) => {
  if (!draft.open || !draft.start || source === "pointer" || shown.view === "month") return;
  const [first, last] = rangeOf(node("timeline").hidden ? "day" : shown.view, shown.date, nowWall());
  if (draft.start < first || draft.start >= last) change({ date: draft.start.slice(0, 10) }, true);
});

node("timeline").addEventListener("star", async ({ detail }) => {
  try {
    await api("PUT", "/favourites", detail);
    await store.reload();
  } catch (error) {
    toastProblem(error);
  }
});

function open(id) {
  if (draft.open) draft.close("details");
  if (details.show(id)) drawer.open("details", { focus: "#details-title" });
}

async function move(id, wanted) {
  const before = store.reservations.get(id);
  const body = {
    start: exact(wanted.start, before.start, config.zone).toISOString(),
    end: exact(wanted.end, before.end, config.zone).toISOString(),
    gpu_ids: wanted.gpuIds, version: before.version,
  };
  try {
    await actions.change(before, body);
  } catch (error) {
    // Put the bar back, and keep the wanted change in the form, with the reason.
    stage.putBack(id);
    if (error.name !== "Problem") throw error;
    draft.edit(before, wanted, "refused");
    drawer.open("form");
    verdict.refused(error);
  }
}

function change(fields, step = false) {
  shown = { ...shown, ...fields };
  writeAddress(shown, today(), { step });
  toolbar.draw(shown);
  stage.show(shown, "date" in fields || "view" in fields);
}

addEventListener("popstate", () => change(readAddress(today())));
function begin() {
  draft.begin({ start: shown.date > today() ? `${shown.date}T09:00` : "" });
  drawer.open("form", { focus: "#start-day" });
}
node("new-booking").addEventListener("click", begin);
registerCalendarKeys({ toolbar, change, today, begin });
node("open-find").addEventListener("click", ({ currentTarget }) => {
  const wanted = node("find").hidden;
  node("find").hidden = !wanted;
  currentTarget.setAttribute("aria-expanded", String(wanted));
  if (wanted) node("find").querySelector("input, select").focus();
});

const title = (account) => config.titles[account] ?? account;
new HoverCard(node("timeline"), { store, zone: config.zone, nowWall, title });
showZone(node("zone"), config.zone);
watchLegend(node("groups"), store, title);
toolbar.draw(shown);
await stage.load();
// Ask again each time the socket opens, also the first time: this page did not receive
// changes between the last answer and the opening.
connect("/ws/calendar/", {
  onJson: (message) => {
    if (message.type === "reservation.changed") store.hear(message.reservation, config.me);
    else if (message.type === "closures.changed") store.reload().catch(toastProblem);
  },
  onState: ({ word }) => {
    node("toolbar").dataset.live = word;
    if (word === "open") store.reload().catch(toastProblem);
  },
});
const kept = config.draft ? null : keptDraft(config.me);
keepDraft(draft, config.me);
if (kept) {
  const changed = kept.editing && store.reservations.get(kept.editing);
  if (changed) draft.edit(changed, kept.fields, "kept");
  else if (!kept.editing) draft.begin(kept.fields, "kept");
  if (draft.open) drawer.open("form");
}
if (config.draft) {
  const { gpu_ids: gpuIds, ...fields } = config.draft;
  draft.begin({ ...Object.fromEntries(Object.entries(fields).filter(([, value]) => value)), gpuIds });
  drawer.open("form", { focus: gpuIds.length ? "#book" : "#start-day" });
  stage.reveal();
}
