// Keeps track of the elements on the screen. Only those are painted.

const MARGIN = "300px 0px";

export class Visible {
  /** onEnter(item) runs when an item's element comes near the screen. */
  constructor(onEnter) {
    this.items = new Set();
    this.byElement = new Map();
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const item = this.byElement.get(entry.target);
        if (!item) continue;
        if (!entry.isIntersecting) this.items.delete(item);
        else if (!this.items.has(item)) {
          this.items.add(item);
          onEnter(item);
        }
      }
    }, { rootMargin: MARGIN });
  }

  add(element, item) {
    this.byElement.set(element, item);
    this.observer.observe(element);
  }

  clear() {
    this.observer.disconnect();
    this.items.clear();
    this.byElement.clear();
  }
}
