// Tokens and numbers as people read them.

/** Zero-width joiners and variation selectors. */
const JOINERS = new Set([0x200c, 0x200d, 0xfe0e, 0xfe0f]);

/** A token as one line with all spaces and control characters visible. */
export function visible(token: string, limit = 60): string {
  if (!token) return "∅";
  const letters = Array.from(token.slice(0, 2 * limit));
  const cut = letters.length > limit || token.length > 2 * limit;
  const shown = letters.slice(0, limit);
  const start = shown.findIndex((c) => c !== " ");
  // Spaces before a cut are not at the end, unless nothing else follows.
  const more = cut && /[^ ]/.test(token.slice(shown.join("").length));
  let end = shown.length;
  while (!more && end > 0 && shown[end - 1] === " ") end--;
  return (
    shown
      .map((c, place) => {
        const code = c.codePointAt(0) ?? 0;
        if (c === " ") return start >= 0 && place > start && place < end ? " " : "␣";
        if (c === "\n") return "⏎";
        if (c === "\t") return "⇥";
        if (code < 0x20) return String.fromCodePoint(0x2400 + code);
        if (code === 0x7f) return "␡";
        if (JOINERS.has(code) && place > 0 && shown.length > 1) return c;
        if (/\p{M}/u.test(c) && place === 0) return "◌" + c;
        if (/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u.test(c))
          return `‹${code.toString(16).toUpperCase().padStart(4, "0")}›`;
        if (/\p{Zs}/u.test(c)) return "⍽";
        return c;
      })
      .join("") + (cut ? "…" : "")
  );
}

export const grouped = (number: number) => number.toLocaleString("en");

/** A count with its noun: "1 head", "12 heads". */
export const counted = (number: number, thing: string, things = `${thing}s`) =>
  `${grouped(number)} ${number === 1 ? thing : things}`;

/** Whole numbers in a list; of more than three in even steps the first two and the last. */
export function listed(numbers: number[], before = ""): string {
  const step = numbers[1] - numbers[0];
  const even = numbers.every((one, n) => one === numbers[0] + n * step);
  const all = numbers.map((one) => `${before}${one}`);
  return even && all.length > 3 ? `${all[0]}, ${all[1]} … ${all.at(-1)}` : all.join(", ");
}

/** What stands after the name of a token in a list: its position, in parentheses, where the same
 * token stands elsewhere too; else nothing. */
export function placesOf(tokens: string[]): (place: number) => string {
  const [seen, twice] = [new Set<string>(), new Set<string>()];
  for (const token of tokens) (seen.has(token) ? twice : seen).add(token);
  return (place) => (twice.has(tokens[place]) ? ` (${place})` : "");
}

/** A number with a true minus sign. */
export function minus(number: number, digits: number): string {
  const text = Math.abs(number).toFixed(digits);
  return number < 0 && Number(text) ? `−${text}` : text;
}

/** A number with three significant digits. */
export function significant3(number: number): string {
  const size = Math.abs(number);
  if (size === 0) return "0";
  if (size >= 999.5) return `${number < 0 ? "−" : ""}${grouped(Math.round(size))}`;
  if (size < 1e-3) return number.toExponential(1).replace(/-/g, "−");
  return (number < 0 ? "−" : "") + size.toPrecision(3);
}

/** A weight with four digits; a smaller one as a power of ten. */
export const weightText = (weight: number) =>
  weight === 0 || weight >= 5e-4 ? minus(weight, 4) : weight.toExponential(1).replace("e-", "e−");

/** Rounding error of float32 sums. */
const ROUNDING = 1e-5;

/** A weight where there is room for two digits. */
export const weight2 = (weight: number) => (weight < 0.005 ? "<.01" : minus(weight, 2));

/** A share in percent; 100 only for the whole. */
export const percent = (share: number) => {
  const of = share < 1 - ROUNDING ? Math.min(100 * share, 99.9) : 100 * share;
  const whole = of === 0 || (of >= 10 && of < 99.5) || of >= 99.95;
  return `${minus(of, whole ? 0 : 1)}\u00a0%`;
};

/** The mass missing in pictures of kept edges, in words. */
export function notShown(shares: number[], heads: number): string {
  if (!shares.length) return "";
  const [least, most] = [percent(Math.min(...shares)), percent(Math.max(...shares))];
  const some = shares.length < heads ? ` in ${counted(shares.length, "head")}` : "";
  const range = least === most ? least : `${least} to ${most}`;
  return `Drawn from the kept edges${some}: ${range} of the mass is not shown`;
}

/** Short measure of a share: .45 */
export const short = (share: number) => {
  const text = minus(share, 2);
  return text === "1.00" ? "1" : text.replace(/^0/, "");
};

const BERT_PIECE = /^##/;
const NEW_WORD = /^[ \n]/;
/** Which part of a character that several tokens share it is, as in 東¹⁄₂. */
const FIRST_PART = /¹⁄[₀-₉]+/gu;
const LATER_PART = /.([⁰¹²³⁴-⁹]+)⁄[₀-₉]+/gu;
/** A text in which the first part of a character stands for it, each later one is a number. */
const once = (token: string) =>
  token
    .replace(FIRST_PART, "")
    .replace(LATER_PART, (_, part: string) =>
      Array.from(part, (digit) => "₀₁₂₃₄₅₆₇₈₉"["⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(digit)]).join(""),
    );

/** A token in flowing text: its text, and whether a space comes before it. */
export function flowing(
  token: string,
  words: boolean,
): { text: string; space: boolean; line: boolean } {
  token = once(token);
  if (BERT_PIECE.test(token) && token.length > 2)
    return { text: visible(token.slice(2), 40), space: false, line: false };
  if (/^[\n\r]+$/.test(token)) return { text: "↵", space: true, line: true };
  if (NEW_WORD.test(token) && token.length > 1)
    return { text: visible(token.slice(1), 40), space: true, line: false };
  const punctuation = /^[.,;:!?)\]}%'’”]+$/.test(token);
  return { text: visible(token, 40), space: words && !punctuation, line: false };
}

/** Whether tokens are whole words with spaces left out between them, as BERT's are. */
export function areWords(tokens: string[]): boolean {
  const some = tokens.slice(0, 400);
  if (some.some((token) => token.length > 1 && NEW_WORD.test(token))) return false;
  return some.reduce((sum, token) => sum + once(token).length, 0) > 2 * some.length;
}

/** Fewest and most tokens of a paragraph, where a text has no ends of sentences in between. */
const FEW = 150,
  MANY = 1200;
const END = /[.!?…。！？]["'”’»)\]]*$/;
const CLOSING = /^[”’»)\]]+$/;
const NUMBER = /^ ?\d/;
const BLANK_LINE = /^\n\s*\n/;

/** Where paragraphs of flowing text end: at blank lines, and with a sentence where they are long.
 *
 * whole: false of an end that is none of the text's own, for want of one. */
export function paragraphs(tokens: string[]): { end: number; whole: boolean }[] {
  const ends: { end: number; whole: boolean }[] = [];
  const blank = (place: number) =>
    BLANK_LINE.test(tokens[place]) ||
    (flowing(tokens[place], false).line && place > 0 && flowing(tokens[place - 1], false).line);
  let start = 0;
  while (start < tokens.length) {
    const last = Math.min(start + MANY, tokens.length);
    let whole = last === tokens.length;
    let end = start + 1;
    for (; end < last; end++) {
      if (blank(end - 1)) whole = true;
      else if (end - start >= FEW && END.test(tokens[end - 1]) && !NUMBER.test(tokens[end])) {
        const quoted = tokens.slice(start, end).filter((token) => token === '"').length % 2 === 1;
        if (quoted && tokens[end] === '"') end++;
        while (end < tokens.length && CLOSING.test(tokens[end])) end++;
        whole = true;
      } else continue;
      break;
    }
    ends.push({ end, whole });
    start = end;
  }
  return ends;
}

/** The name of a model; of one in a folder, what the path ends with. */
export function modelName(name: unknown): string {
  if (typeof name !== "string") return "";
  const parts = name.split(/[\\/]+/).filter(Boolean);
  if (!/^([\\/.~]|[A-Za-z]:)/.test(name)) return visible(name, 60);
  const last = parts.at(-1) ?? "";
  return visible(
    /^(model|models|checkpoint|main|weights)$/i.test(last) && parts.length > 1
      ? parts.at(-2)!
      : last,
    60,
  );
}

/** A text as part of a file's name: letters and digits of any script, else hyphens. */
export const fileName = (text: string): string =>
  Array.from(text.replace(/[^\p{L}\p{M}\p{N}.]+/gu, "-").replace(/^[-.]+|[-.]+$/g, ""))
    .slice(0, 40)
    .join("");
