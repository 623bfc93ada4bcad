// icon("free") -> <svg class="icon"> from the site's sprite.

const SPRITE = new URL("../img/icons.svg", import.meta.url).pathname;
const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(SVG, "use"));
  setIcon(svg, name);
  return svg;
}

/** Shows another icon in the same place. */
export function setIcon(svg, name) {
  const use = svg.firstChild;
  const target = `${SPRITE}#${name}`;
  if (use.getAttribute("href") !== target) use.setAttribute("href", target);
}
