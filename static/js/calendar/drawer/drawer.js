// The panel on the right: the booking form, or the facts of a reservation. It does not
// block the page: the calendar beside it stays live and draggable.
export class Drawer {
  constructor(node, { onClose }) {
    Object.assign(this, { node, onClose });
    this.back = null;
    node.addEventListener("click", (event) => {
      if (event.target.closest("[data-close]")) this.close();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || node.hidden || event.defaultPrevented) return;
      if (document.querySelector("dialog[open], :popover-open")) return;
      event.preventDefault();
      this.close();
    });
  }

  get isOpen() {
    return !this.node.hidden;
  }

  /** Show one of its parts ("form" or "details"). `focus`: a selector for the focus. Without
   *  it the focus stays where it is. */
  open(part, { focus = null } = {}) {
    if (this.node.hidden) this.back = document.activeElement;
    this.node.hidden = false;
    document.body.classList.add("has-drawer");
    for (const child of this.node.querySelectorAll("[data-part]")) child.hidden = child.dataset.part !== part;
    this.part = part;
    if (focus) this.node.querySelector(focus)?.focus();
  }

  close() {
    if (this.node.hidden) return;
    const inside = this.node.contains(document.activeElement) || document.activeElement === document.body;
    this.node.hidden = true;
    document.body.classList.remove("has-drawer");
    this.onClose(this.part);
    if (inside && this.back?.isConnected) this.back.focus();
    this.back = null;
  }
}
