// The header of a .safetensors file: 8 bytes of length (little-endian), then JSON.
// See "Format" in the README of safetensors.

const MOST_HEADER_BYTES = 100 * 2 ** 20;

/** The file cut off after its header, or null without a plausible header. */
export async function headerOnly(file) {
  const view = new DataView(await file.slice(0, 8).arrayBuffer());
  const length = Number(view.getBigUint64(0, true));
  if (length < 2 || length > MOST_HEADER_BYTES || 8 + length > file.size) return null;
  return new File([file.slice(0, 8 + length)], file.name, { type: "application/octet-stream" });
}
