// A log line that is one JSON object, as readable text: "step 10  loss 2.31".

const MOST_CHARACTERS = 2000;

function figure(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return typeof value === "object" ? JSON.stringify(value) : String(value);
  return String(Number(value.toPrecision(5)));
}

/** The line as text. "" if it is not a JSON object. */
export function textOfJson(line) {
  const text = line.trim();
  if (!text.startsWith("{") || !text.endsWith("}") || text.length > MOST_CHARACTERS) return "";
  try {
    const entries = Object.entries(JSON.parse(text));
    return entries.map(([key, value]) => `${key.replaceAll("_", " ")} ${figure(value)}`).join("   ");
  } catch (error) {
    if (error instanceof SyntaxError) return "";
    throw error;
  }
}
