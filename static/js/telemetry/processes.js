// Rows of a table of processes, on the page of a Gpu and of a node.

import { ownerOf } from "../board/words.js";
import { el } from "../dom.js";
import { UNKNOWN, bytes, pct } from "../format.js";
import { relative } from "../time.js";
import { gettext } from "../words.js";

/** One row. `first` is an optional cell before the pid. */
export function processRow(process, first = null) {
  const name = process.job
    ? el("a", { href: `/jobs/${process.job}/`, text: gettext("job #{job}", { job: process.job }) })
    : el("span", { class: "mono", text: process.command || UNKNOWN });
  const since = process.started_at === null ? UNKNOWN : relative(new Date(process.started_at * 1000));
  return el("tr", {},
    first,
    el("td", { class: "mono", text: process.pid }),
    el("td", { text: ownerOf(process) }),
    el("td", { class: "gpu-command truncate", title: process.command }, name),
    el("td", { class: "num", text: bytes(process.memory_bytes) }),
    el("td", { class: "num", text: pct(process.sm_pct) }),
    el("td", { class: "nowrap", text: since }));
}
