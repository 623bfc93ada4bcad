// Dragging over empty time: along a row it chooses times, across rows it chooses
// GPUs too. EventCalendar selects in one row only, so the rows between the row
// pressed and the row released are found here, and a frame shows them meanwhile.
import { el } from "../../dom.js";

/** choose(rowA, rowB, startWall, endWall) is called on release, press(row, wall) on a click. */
export class RowSelection {
  constructor(host, { choose, press }) {
    this.host = host;
    this.press = press;
    this.choose = choose;
    this.from = null;
    this.frame = el("div", { class: "row-frame", hidden: true });
    host.append(this.frame);
    host.addEventListener("pointerdown", (event) => this.#down(event), true);
    // Runs after EventCalendar has moved its preview. Otherwise the two would differ.
    addEventListener("pointermove", (event) => requestAnimationFrame(() => this.#move(event)));
    for (const type of ["pointerup", "pointercancel"]) {
      addEventListener(type, () => { this.pressed = false; this.#hide(); });
    }
  }

  /** The calendar's options for selecting. */
  options() {
    return {
      selectable: true, unselectAuto: false, selectMinDistance: 5,
      select: (info) => {
        const there = this.ec.dateFromPoint(info.jsEvent.clientX, info.jsEvent.clientY);
        this.ec.unselect();
        const from = info.resource ?? this.from?.resource;
        if (from) {
          this.choose(from.id, (there?.resource ?? from).id,
            info.startStr.slice(0, 16), info.endStr.slice(0, 16));
        }
      },
      dateClick: (info) => info.resource && this.press(info.resource.id, info.dateStr.slice(0, 16)),
    };
  }

  #hide() {
    this.frame.hidden = true;
    this.host.classList.remove("is-framing");
  }

  #down(event) {
    this.pressed = true;
    this.from = event.target.closest(".ec-day")
      ? this.ec.dateFromPoint(event.clientX, event.clientY) : null;
  }

  #move(event) {
    if (!this.pressed || !(event.buttons & 1) || !this.from?.resource) return;
    const preview = this.host.querySelector(".ec-event.ec-preview");
    const there = this.ec.dateFromPoint(event.clientX, event.clientY);
    if (!preview || !there?.resource || there.resource.id === this.from.resource.id) {
      this.#hide();
      return;
    }
    const box = this.host.getBoundingClientRect();
    const across = preview.getBoundingClientRect();
    const rows = [this.from.dayEl.getBoundingClientRect(), there.dayEl.getBoundingClientRect()];
    const top = Math.min(...rows.map((row) => row.top));
    const bottom = Math.max(...rows.map((row) => row.bottom));
    this.frame.hidden = false;
    this.host.classList.add("is-framing");
    this.frame.textContent = preview.textContent;
    for (const [name, value] of Object.entries({
      left: across.left - box.left, width: across.width, top: top - box.top, height: bottom - top,
    })) this.frame.style.setProperty(name, `${value}px`);
  }
}

/** The GPUs of the rows from one to another, in their order.
 *  rows: [{id, gpuIds, group}] as drawn. A group's row alone, or folded, means all
 *  of its GPUs; an open group's row on the way to others means only those. */
export function gpusBetween(rows, a, b) {
  const [i, j] = [a, b].map((id) => rows.findIndex((row) => row.id === id)).sort((x, y) => x - y);
  if (i < 0) return [];
  const crossed = rows.slice(i, j + 1);
  const single = crossed.some((row) => !row.group);
  const wanted = crossed.filter((row) => !row.group || row.folded || !single);
  return [...new Set(wanted.flatMap((row) => row.gpuIds))];
}
