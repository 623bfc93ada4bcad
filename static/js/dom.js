// Helpers for the DOM. Data only becomes text nodes and attributes.

/** el("a", {class: "chip", href: "/x", text: "free"}, child, ...) */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [type, fn] of Object.entries(value)) node.addEventListener(type, fn);
    else if (name === "vars") setVars(node, value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Writes text only if it differs, to avoid a layout and an announcement. */
export function setText(node, value) {
  const text = String(value);
  if (node.shownText === text) return;
  node.shownText = text;
  node.textContent = text;
}

export function setAttr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function setClass(node, value) {
  if (node.className !== value) node.className = value;
}

/** Sets custom properties through the CSSOM: the content security policy forbids style attributes. */
export function setVars(node, values) {
  for (const [name, value] of Object.entries(values)) {
    const text = String(value);
    if (node.style.getPropertyValue(name) !== text) node.style.setProperty(name, text);
  }
}

/** Sets the children and moves only those out of place, so that the focus stays. */
export function place(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, i) => {
    if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null);
  });
}

/** The object that Django's json_script left in the page. */
export function pageData(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`The page carries no data named ${id}.`);
  return JSON.parse(node.textContent);
}

/** The object of a json_script, or null if the page has none. */
export const optionalData = (id) => (document.getElementById(id) ? pageData(id) : null);

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
