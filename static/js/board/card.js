// One Gpu as a card. It is built when it first comes into view. After that only its texts change.

import { el, setAttr, setClass, setText, setVars } from "../dom.js";
import { UNKNOWN, bytes, ghz } from "../format.js";
import { icon, setIcon } from "../icons.js";
import { toWall } from "../calendar/zone.js";
import { isSilent } from "../telemetry/states.js";
import { clock, siteZone } from "../time.js";
import { drawMemory, makeMemory } from "./memory.js";
import { drawMine, makeMine } from "./mine.js";
import { isSlurm, slurmProcesses } from "./slurm.js";
import { drawQuick, makeQuick } from "./quick.js";
import { drawSparkline, makeSparkline } from "./sparkline.js";
import { energyWords, isBookable, isHeld, missingWords, noteWords, ownerOf, untilWords, whoWords } from "./words.js";
import { gettext } from "../words.js";

const PROCESSES_SHOWN = 2;

export function makeStateChip() {
  const svg = icon("unknown");
  const word = el("span");
  return { root: el("span", { class: "state" }, svg, word), svg, word };
}

export function drawStateChip(chip, state) {
  setClass(chip.root, `state state-${state.key}`);
  setIcon(chip.svg, state.key);
  setText(chip.word, state.word);
}

function makeFigure(label, withMeter) {
  const value = el("span", { class: "fig-value" });
  const meter = withMeter ? el("span", { class: "fig-meter" }, el("i")) : null;
  return { root: el("div", { class: "fig" }, el("span", { class: "fig-label", text: label }), value, meter), value, meter };
}

function drawFigure(figure, text, part = null, title = null) {
  setText(figure.value, text);
  setAttr(figure.root, "title", title || null);
  if (figure.meter) setVars(figure.meter, { "--value": part === null ? 0 : Math.min(1, part).toFixed(3) });
}

export class GpuCard {
  constructor(cell) {
    this.cell = cell;
    this.root = el("article", { class: isSlurm(cell.info) ? "card gpu is-slurm" : "card gpu", id: `gpu-${cell.id}`, "aria-label": gettext("GPU {name}, {gpu_class}", { name: cell.name, gpu_class: cell.info.gpu_class }) });
    this.built = false;
  }

  build() {
    this.built = true;
    const { info, id, name } = this.cell;
    this.chip = makeStateChip();
    this.util = el("span", { class: "gpu-util" });
    this.spark = makeSparkline();
    this.memory = makeMemory();
    this.temperature = makeFigure(gettext("Temperature"), true);
    this.power = makeFigure(gettext("Power"), true);
    this.clock = makeFigure(gettext("Clock"), false);
    this.note = el("p", { class: "gpu-note truncate" });
    this.mine = makeMine();
    this.processes = el("ul", { class: "gpu-procs" });
    this.holder = el("a", { class: "gpu-holder truncate" });
    this.next = el("span", { class: "gpu-next" });
    this.energy = el("span", { class: "gpu-energy", title: gettext("energy of this booking so far") });
    this.details = el("a", { class: "btn btn-s", href: `/gpus/${id}/`, text: gettext("Details"), "aria-label": gettext("Details of {name}: {gpu_class}", { name, gpu_class: info.gpu_class }) });
    this.book = el("a", { class: "btn btn-s", href: `/calendar/?gpu=${id}`, text: gettext("Book"), "aria-label": gettext("Book {name}", { name }) });
    this.quick = makeQuick(this.cell);
    this.root.append(
      el("header", { class: "gpu-head" },
        el("span", { class: "gpu-index", text: info.index }),
        el("h3", { class: "gpu-class truncate", title: `${info.name}, ${info.uuid}` },
          el("a", { href: `/gpus/${id}/`, text: info.gpu_class, "aria-label": gettext("Details of {name}, {gpu_class}", { name, gpu_class: info.gpu_class }) })),
        this.chip.root),
      el("div", { class: "gpu-load" }, this.util, this.spark),
      this.memory.root,
      el("div", { class: "gpu-figs" }, this.temperature.root, this.power.root, this.clock.root),
      this.note, this.processes, this.mine.root,
      el("footer", { class: "gpu-foot" },
        el("div", { class: "gpu-booking" }, this.holder, this.next, this.energy),
        this.details, this.quick, this.book));
  }

  paint() {
    if (!this.built) this.build();
    const { cell } = this;
    const silent = isSilent(cell.state);
    setClass(this.root, `card gpu is-${cell.state.key}${silent ? " is-silent" : ""}${cell.holder?.mine ? " is-mine" : ""}${isSlurm(cell.info) ? " is-slurm" : ""}`);
    drawStateChip(this.chip, cell.state);
    setText(this.util, cell.row?.utilPct ?? UNKNOWN);
    setAttr(this.util, "title", (cell.row?.utilPct ?? null) === null ? missingWords(cell) : null);
    drawSparkline(this.spark, cell);
    drawMemory(this.memory, cell);
    this.paintFigures();
    const note = isSlurm(cell.info) && slurmProcesses(cell).length ? "" : noteWords(cell);
    setText(this.note, note);
    setAttr(this.note, "title", note || null);
    this.paintProcesses();
    this.paintBooking();
  }

  paintFigures() {
    const { info, row } = this.cell;
    const { temperatureCelsius: heat = null, powerWatts: power = null, smClockMhz: clock = null } = row ?? {};
    const [slowdown, limit] = [info.slowdown_celsius, info.power_limit_watts];
    const why = (value, words) => (value === null ? missingWords(this.cell) : words);
    drawFigure(this.temperature, heat === null ? UNKNOWN : `${heat} °C`,
      heat !== null && slowdown ? heat / slowdown : null, why(heat, slowdown && gettext("throttles at {celsius} °C", { celsius: slowdown })));
    setClass(this.temperature.meter, heat !== null && slowdown && heat >= slowdown - 5 ? "fig-meter is-hot" : "fig-meter");
    drawFigure(this.power, power === null ? UNKNOWN : limit ? `${power}/${Math.round(limit)} W` : `${power} W`,
      power !== null && limit ? power / limit : null, why(power, limit && gettext("limit {watts} W", { watts: Math.round(limit) })));
    drawFigure(this.clock, ghz(clock), null, why(clock, info.sm_clock_max_mhz && gettext("at most {clock}", { clock: ghz(info.sm_clock_max_mhz) })));
  }

  paintProcesses() {
    const found = isSlurm(this.cell.info) ? slurmProcesses(this.cell) : this.cell.detail?.processes ?? [];
    const all = [...found].sort((a, b) => (b.memory_bytes ?? 0) - (a.memory_bytes ?? 0));
    const key = JSON.stringify(all.map((p) => [p.pid, p.user, p.command, p.job, bytes(p.memory_bytes)]));
    if (key === this.processesShown) return;
    this.processesShown = key;
    const lines = all.slice(0, PROCESSES_SHOWN).map((p) =>
      el("li", { title: p.pid === null ? null : gettext("pid {pid}: {command}", { pid: p.pid, command: p.command }) },
        el("span", { class: "proc-user", text: ownerOf(p) }),
        p.job ? el("a", { class: "proc-command truncate", href: `/jobs/${p.job}/`, text: gettext("job #{job}", { job: p.job }) })
          : el("span", { class: "proc-command truncate mono", text: p.command || gettext("pid {pid}", { pid: p.pid }) }),
        p.pid === null ? null : el("span", { class: "proc-memory", text: bytes(p.memory_bytes) })));
    if (all.length > PROCESSES_SHOWN) lines.push(el("li", { class: "faint", text: gettext("and {n} more", { n: all.length - PROCESSES_SHOWN }) }));
    this.processes.replaceChildren(...lines);
  }

  paintBooking() {
    const { cell } = this;
    setText(this.holder, whoWords(cell));
    setAttr(this.holder, "href", isHeld(cell) && cell.holder.reservation ? `/reservations/${cell.holder.reservation}/` : null);
    const until = untilWords(cell);
    setText(this.next, until);
    setAttr(this.next, "title", until || null);
    setText(this.energy, energyWords(cell));
    drawMine(this.mine, cell);
    this.book.hidden = !isBookable(cell) || cell.state.key === "intruder";
    this.details.hidden = !this.book.hidden;
    drawQuick(this.quick, cell);
    // The link of a held Gpu books it from the time at which it comes free.
    const from = isHeld(cell) ? cell.holder.free_from ?? cell.holder.until : null;
    setText(this.book, from ? gettext("Book from {time}", { time: clock(from) }) : gettext("Book"));
    setAttr(this.book, "aria-label", from ? gettext("Book from {time}: {name}", { time: clock(from), name: cell.name }) : gettext("Book {name}", { name: cell.name }));
    setAttr(this.book, "href", `/calendar/?gpu=${cell.id}${from ? `&start=${toWall(from, siteZone)}` : ""}`);
    setClass(this.book, `btn btn-s${cell.state.key === "free" ? " btn-primary" : ""}`);
  }
}
