// The filters of the board, kept in the address: view, class, group, state, mine, q, sort, gpu.

import { el } from "../dom.js";

const NAMES = ["view", "class", "group", "state", "mine", "q", "sort", "gpu"];

export class Filters {
  constructor(onChange) {
    this.onChange = onChange;
    this.params = new URLSearchParams(location.search);
    addEventListener("popstate", () => {
      this.params = new URLSearchParams(location.search);
      this.onChange();
    });
  }

  get(name) {
    return this.params.get(name) ?? "";
  }

  /** Writes filters into the address ("" removes one) and notifies the board. */
  set(values) {
    for (const [name, value] of Object.entries(values)) {
      if (!NAMES.includes(name)) throw new Error(`The board has no filter named ${name}`);
      if (value) this.params.set(name, value);
      else this.params.delete(name);
    }
    const query = this.params.toString();
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
    this.onChange();
  }

  /** Returns true if a cell passes the filters. The count by state ignores the filter by state. */
  passes(cell, { ignoreState = false } = {}) {
    const [gpuClass, group, state, gpu] = ["class", "group", "state", "gpu"].map((name) => this.get(name));
    const query = this.get("q").toLowerCase();
    if (gpuClass && cell.info.gpu_class !== gpuClass) return false;
    if (group && cell.holder?.account !== group) return false;
    if (this.get("mine") && !cell.holder?.mine) return false;
    if (gpu && String(cell.id) !== gpu) return false;
    if (state && !ignoreState && cell.state.bucket !== state) return false;
    return !query || haystack(cell).includes(query);
  }

  get active() {
    return ["class", "group", "state", "mine", "q", "gpu"].some((name) => this.get(name));
  }

  /** Returns the number of filters in use. */
  get count() {
    return ["class", "group", "mine", "q"].filter((name) => this.get(name)).length;
  }
}

function haystack(cell) {
  const { holder, info, detail, state } = cell;
  const users = (detail?.processes ?? []).map((process) => process.user);
  return [cell.name, state.word, info.gpu_class, info.uuid, holder?.user, holder?.login, holder?.account, ...users].join(" ").toLowerCase();
}

/** Updates the options of a select and keeps its choice. */
export function fillSelect(select, values, chosen) {
  const wanted = [...new Set([...values, ...(chosen ? [chosen] : [])])].sort();
  const shown = [...select.options].slice(1).map((option) => option.value);
  if (wanted.join("\n") !== shown.join("\n")) {
    select.replaceChildren(select.options[0], ...wanted.map((value) => el("option", { value, text: value })));
  }
  if (select.value !== chosen) select.value = chosen;
}
