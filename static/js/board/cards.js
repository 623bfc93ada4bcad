// The cards view: a section per node, its Gpus as cards.

import { el, place, setText } from "../dom.js";
import { icon } from "../icons.js";
import { GpuCard } from "./card.js";
import { isSlurm, slurmAgeWords } from "./slurm.js";
import { Visible } from "./watch.js";
import { drainWords } from "./words.js";
import { gettext } from "../words.js";

// Up to this number all cards are painted, also those out of view: scrolling and printing show no blanks.
const PAINT_ALL = 64;

// The device gate of a node beside its isolation; nothing for a node without one.
const GATES = {
  watch: () => gettext("device gate watches"),
  gated: () => gettext("device gate on"),
  pending: () => gettext("device gate pending"),
  failed: () => gettext("device gate failed"),
  unavailable: () => gettext("device gate not available"),
};

export class CardsView {
  constructor(root, board) {
    Object.assign(this, { root, board });
    this.visible = new Visible((card) => card.paint());
    this.cards = new Map();
    this.sections = new Map();
  }

  /** Shows exactly these cells, in this order. Reuses the cards that exist. */
  layout(cells) {
    const byNode = Map.groupBy(cells, (cell) => cell.info.node);
    const sections = [...byNode].map(([name, members]) => {
      const section = this.section(name);
      place(section.grid, members.map((cell) => this.card(cell).root));
      this.label(section, name, members);
      return section.root;
    });
    place(this.root, sections);
    this.few = cells.length <= PAINT_ALL ? cells : null;
    this.paint();
  }

  section(name) {
    let section = this.sections.get(name);
    if (!section) {
      const title = el("h2", { class: "node-name" }, icon("node"), el("a", { href: `/nodes/${encodeURIComponent(name)}/`, text: name }));
      const facts = el("p", { class: "node-facts" });
      const grid = el("div", { class: "gpu-grid" });
      const root = el("section", { class: "node", "aria-label": gettext("Node {name}", { name }) }, el("header", { class: "node-head" }, title, facts), grid);
      section = { root, facts, grid };
      this.sections.set(name, section);
    }
    return section;
  }

  card(cell) {
    let card = this.cards.get(cell.id);
    if (!card) {
      card = new GpuCard(cell);
      this.cards.set(cell.id, card);
      this.visible.add(card.root, card);
    }
    card.cell = cell;
    return card;
  }

  /** "4 × A100 80 GB   driver 570   jobs enforced   load 0.4" */
  label(section, name, members) {
    const counts = Map.groupBy(members, (cell) => cell.info.gpu_class);
    const node = this.board.nodes.get(name) ?? {};
    const facts = [...counts].map(([gpuClass, some]) => `${some.length} × ${gpuClass}`);
    if (isSlurm(node)) {
      setText(section.facts, [...facts, gettext("Slurm gives them out"), this.board.silent.length ? slurmAgeWords(this.board) : ""].filter(Boolean).join("  ·  "));
      section.members = members;
      return;
    }
    if (node.driver_version) facts.push(gettext("driver {version}", { version: node.driver_version }));
    if (node.isolation) facts.push(node.isolation === "none" ? gettext("no job isolation") : gettext("job isolation: {isolation}", { isolation: node.isolation }));
    if (GATES[node.gate]) facts.push(GATES[node.gate]());
    if (node.load1 !== null && node.load1 !== undefined) facts.push(gettext("load {load}", { load: node.load1.toFixed(1) }));
    if (node.maintenance) facts.push(gettext("out of service"));
    if (node.draining) facts.push(drainWords(name));
    setText(section.facts, facts.join("  ·  "));
    section.members = members;
  }

  paint() {
    for (const card of this.few?.map((cell) => this.card(cell)) ?? this.visible.items) card.paint();
    for (const [name, section] of this.sections) {
      if (section.root.isConnected) this.label(section, name, section.members);
    }
  }

  leave() {
    this.root.replaceChildren();
  }
}
