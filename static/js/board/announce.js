// Tells a screen reader which Gpus changed their state; never a sample.

import { ngettext } from "../words.js";

const FEW = 3;
const REST_MS = 4000;

export class Announcer {
  constructor(node) {
    this.node = node;
    this.waiting = new Map();
    this.timer = null;
  }

  say(cells) {
    for (const cell of cells) this.waiting.set(cell.name, cell.state.word);
    if (this.waiting.size && this.timer === null) {
      this.flush();
      this.timer = setTimeout(() => { this.timer = null; this.flush(); }, REST_MS);
    }
  }

  flush() {
    if (!this.waiting.size) return;
    const changes = [...this.waiting];
    this.waiting.clear();
    if (changes.length <= FEW) {
      this.node.textContent = changes.map(([name, word]) => `${name}: ${word}.`).join(" ");
      return;
    }
    const counts = Map.groupBy(changes, ([, word]) => word);
    const words = [...counts].map(([word, some]) => `${some.length} ${word}`).join(", ");
    this.node.textContent = ngettext("{n} GPU changed: now {words}.", "{n} GPUs changed: now {words}.", changes.length, { words });
  }
}
