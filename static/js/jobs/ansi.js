// Colours of a line of a log: turns SGR sequences into pieces of text. The server has
// removed all other control sequences.

const SGR = /\u001b\[([0-9;]*)m/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

function apply(codes, style) {
  for (const code of codes) {
    if (code === 0) { style.color = ""; style.bold = false; }
    else if (code === 1) style.bold = true;
    else if (code === 22) style.bold = false;
    else if (code === 39) style.color = "";
    else if (code >= 30 && code <= 37) style.color = NAMES[code - 30];
    else if (code >= 90 && code <= 97) style.color = NAMES[code - 90];
  }
}

/** Splits a line into [text, className] pieces. The style continues in the next line. */
export function pieces(line, style) {
  const out = [];
  let from = 0;
  const push = (text) => {
    if (!text) return;
    const names = [style.color && `sgr-${style.color}`, style.bold && "sgr-bold"];
    out.push([text, names.filter(Boolean).join(" ")]);
  };
  for (const match of line.matchAll(SGR)) {
    push(line.slice(from, match.index));
    apply(match[1] === "" ? [0] : match[1].split(";").map(Number), style);
    from = match.index + match[0].length;
  }
  push(line.slice(from));
  return out;
}
