// State of the board: one cell per Gpu, updated by roster, frames, holders and details.

import { decode, readLayout, rosterIdOf, split } from "../telemetry/frame.js";
import { stateOf } from "../telemetry/states.js";
import { isSlurm } from "./slurm.js";

export const HISTORY_SECONDS = 60;
const UNKNOWN = 255;

class Cell {
  constructor(info) {
    this.id = info.id;
    this.name = `${info.node}:${info.index}`;
    this.state = stateOf(0);
    this.row = null;
    this.holder = null;
    this.detail = null;
    this.spent = null; // {reservation, kwh} of the running booking
    this.history = new Uint8Array(HISTORY_SECONDS).fill(UNKNOWN);
    this.historyAt = 0;
    this.noted = 0; // counts changes of the history
    this.seenAt = null;
    this.info = info;
  }

  /** Stores the utilization of a second. Seconds without a frame stay holes. */
  note(row, second) {
    const gap = Math.min(Math.max(second - this.historyAt, 0), HISTORY_SECONDS);
    for (let i = 0; i < gap; i++) this.history[(second - i) % HISTORY_SECONDS] = UNKNOWN;
    if (second <= this.historyAt - HISTORY_SECONDS) return;
    const fresh = row.ageSeconds !== null && row.ageSeconds < 3;
    if (fresh && row.utilPct !== null) this.history[second % HISTORY_SECONDS] = row.utilPct;
    this.historyAt = Math.max(this.historyAt, second);
    this.noted += 1;
  }

  /** Utilization `ago` seconds before the newest second; null is a hole. */
  utilAgo(ago) {
    const value = this.history[(this.historyAt - ago + HISTORY_SECONDS) % HISTORY_SECONDS];
    return value === UNKNOWN ? null : value;
  }
}

export class Board {
  constructor() {
    this.cells = [];
    this.byId = new Map();
    this.nodes = new Map();
    this.byNode = new Map();
    this.rosterId = null;
    this.layout = null; // how to read the frames of this roster
    this.frameAt = null; // performance.now() of the newest frame
    this.holders = {};
    this.silent = []; // clusters of Slurm that do not answer
    this.spent = {};
  }

  /** Takes a roster. Cells of Gpus that are in both rosters keep their history. */
  takeRoster(roster) {
    const cells = roster.gpus.map((info) => {
      const cell = this.byId.get(info.id);
      if (!cell) return new Cell(info);
      cell.info = info;
      return cell;
    });
    this.cells = cells;
    this.byId = new Map(cells.map((cell) => [cell.id, cell]));
    const before = this.nodes;
    this.nodes = new Map();
    for (const node of roster.nodes ?? []) this.nodes.set(node.name, { ...before.get(node.name), ...node });
    for (const { node } of roster.gpus) if (!this.nodes.has(node)) this.nodes.set(node, { name: node });
    this.byNode = Map.groupBy(cells, (cell) => cell.info.node);
    this.rosterId = roster.roster_id;
    // An older version of ingest sends no layout: nothing is shown until the next roster.
    this.layout = roster.layout ? readLayout(roster.layout) : null;
    this.takeHolders(this.holders);
    this.takeEnergy(this.spent);
  }

  takeHolders(holders, silent = this.silent) {
    this.holders = holders;
    this.silent = silent;
    for (const cell of this.cells) cell.holder = holders[cell.id] ?? null;
  }

  takeEnergy(spent) {
    this.spent = spent;
    for (const cell of this.cells) cell.spent = spent[cell.id] ?? null;
  }

  takeDetail(detail) {
    const node = this.nodes.get(detail.node);
    if (node) node.load1 = detail.load1;
    for (const cell of this.byNode.get(detail.node) ?? []) cell.detail = detail.gpus[cell.info.uuid] ?? cell.detail;
  }

  /** Takes a frame. Returns the cells whose state changed, or null for a frame of another roster. */
  takeFrame(buffer) {
    if (!this.layout || rosterIdOf(buffer) !== this.rosterId) return null;
    const frame = decode(buffer, this.layout);
    if (frame.rows.length !== this.cells.length) return null;
    const second = Math.floor(frame.serverAt);
    const changed = [];
    frame.rows.forEach((row, i) => {
      const cell = this.cells[i];
      const state = stateOf(row.state);
      if (cell.row && state !== cell.state) changed.push(cell);
      cell.state = state;
      cell.row = row;
      cell.seenAt = row.ageSeconds === null ? null : (frame.serverAt - row.ageSeconds) * 1000;
      cell.note(row, second);
    });
    this.frameAt = performance.now();
    return changed;
  }

  /** Takes frames from before the page was opened, for the history only. All have the same roster. */
  takePast(buffer) {
    if (!this.layout || rosterIdOf(buffer) !== this.rosterId) return;
    for (const frame of split(buffer, this.layout).map((one) => decode(one, this.layout))) {
      if (frame.rows.length !== this.cells.length) continue;
      frame.rows.forEach((row, i) => this.cells[i].note(row, Math.floor(frame.serverAt)));
    }
  }

  /** Seconds since the newest frame arrived. null before the first. */
  silenceSeconds() {
    return this.frameAt === null ? null : (performance.now() - this.frameAt) / 1000;
  }

  /** Age of what Slurm said of its Gpus. null if there are none, or before the first frame. */
  slurmAgeSeconds() {
    const ages = this.cells.filter((cell) => isSlurm(cell.info)).map((cell) => cell.row?.ageSeconds).filter((age) => age !== null && age !== undefined);
    return ages.length && this.frameAt !== null ? Math.max(...ages) + this.silenceSeconds() : null;
  }

  /**
   * Age of the shown figures: the median over the Gpus that report, plus the seconds since the newest frame.
   * A board with Gpus of Slurm only has no figures: its age is that of the newest frame.
   */
  ageSeconds() {
    if (this.frameAt === null) return null;
    const reporting = this.cells.filter((cell) => !isSlurm(cell.info));
    if (!reporting.length && this.cells.length) return this.silenceSeconds();
    const ages = reporting.map((cell) => cell.row?.ageSeconds).filter((age) => age !== null && age !== undefined && age < 3);
    if (!ages.length) return null;
    ages.sort((a, b) => a - b);
    return ages[Math.floor(ages.length / 2)] + this.silenceSeconds();
  }
}
