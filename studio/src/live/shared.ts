// Characters whose bytes are in several tokens: see `texts_of` in src/headloom/formats/tokens.py.

const BYTE = /‹0x([0-9A-F]{2})›/;
const UPPER = "⁰¹²³⁴⁵⁶⁷⁸⁹",
  LOWER = "₀₁₂₃₄₅₆₇₈₉";
const digits = (number: number, all: string) =>
  [...String(number)].map((digit) => all[Number(digit)]).join("");

/** The texts of tokens, from the text of each alone: 東¹⁄₂ and 東²⁄₂ for ‹0xE6› and ‹0x9D›‹0xB1›. */
export function sharedCharacters(names: string[]): string[] {
  const found = [...names];
  for (let start = 0; start < names.length; start++) {
    let end = start;
    while (end < names.length && BYTE.test(names[end])) end++;
    if (end > start) found.splice(start, end - start, ...joined(names.slice(start, end)));
    start = end;
  }
  return found;
}

/** The texts of tokens that all have parts of characters. */
function joined(names: string[]): string[] {
  const bytes: number[] = [],
    owners: number[] = [];
  for (const [owner, name] of names.entries())
    for (const [n, part] of name.split(BYTE).entries())
      for (const byte of n % 2 ? [parseInt(part, 16)] : new TextEncoder().encode(part)) {
        bytes.push(byte);
        owners.push(owner);
      }
  const texts = names.map(() => "");
  for (let at = 0; at < bytes.length;) {
    const [text, size] = character(bytes, at);
    const sharing = [...new Set(owners.slice(at, at + size))];
    for (const [n, owner] of sharing.entries()) {
      texts[owner] += text;
      if (sharing.length > 1)
        texts[owner] += `${digits(n + 1, UPPER)}⁄${digits(sharing.length, LOWER)}`;
    }
    at += size;
  }
  return texts;
}

/** The character that starts at a byte, and its size; a byte that starts none is ‹0xE6›. */
function character(bytes: number[], at: number): [string, number] {
  const first = bytes[at];
  const size = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  try {
    const own = Uint8Array.from(bytes.slice(at, at + size));
    return [new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(own), size];
  } catch {
    return [`‹0x${first.toString(16).toUpperCase().padStart(2, "0")}›`, 1];
  }
}
