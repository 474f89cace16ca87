// One head over many texts as a figure.

import { INKS, type Theme } from "../colour";
import { barsOfCounts, endAt, type CorpusHead, type Exemplar, type Spread } from "../corpus";
import { headName, type Example, type Layer } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { bounded, counted, percent, significant3, visible, weightText } from "../text";
import { smallPrint } from "./print";
import { EDGE, figure, fitted, line, rect, SMALLEST, text, widthOf } from "./svg";

interface Shown {
  example: Example;
  layer: Layer;
  head: number;
  found: CorpusHead;
  spreads: [name: string, spread: Spread][];
  colour: (name: string, theme: Theme) => string;
  /** How many texts were read. */
  progress: string;
}

/** Texts and words that are shown. */
const TEXTS = 8,
  WORDS = 8;
const LINE = 14,
  STRIP = 18;

export function corpusFigure(studio: Studio, shown: Shown, theme: Theme, width: number): Figure {
  const { example, layer, head, found, spreads, progress } = shown;
  const parts: string[] = [];
  let y = 0;
  const heading = (x: number, at: number, said: string) =>
    parts.push(text(x, at + 11, said, { size: SMALLEST + 1, weight: 600 }));
  heading(EDGE, y, "Where it acts strongest");
  y += 18;
  for (const one of found.exemplars.slice(0, TEXTS)) y = exemplar(parts, one, y, theme, width);
  y += 10;
  // Side by side on a page, one below the other in a column.
  const beside = width >= 500;
  const half = beside ? (width - 2 * EDGE - 24) / 2 : width - 2 * EDGE;
  heading(EDGE, y, "How its scores spread over the texts");
  let below = y + 20;
  for (const [name, spread] of spreads)
    below = strip(parts, name, spread, { x: EDGE, y: below, width: half }, shown, theme);
  const right = beside ? EDGE + half + 24 : EDGE;
  let other = beside ? y : below + 10;
  heading(right, other, "Words it looks at most");
  other = words(parts, found, { x: right, y: other + 20, width: half }, theme);
  return figure({
    width,
    height: Math.max(below, other),
    theme,
    title: `${headName(example, layer, head)} over all texts`,
    note: `${progress}. Bars are texts; shaded is the middle half, the line the median.${
      found.bounds ? " ≥: at least so much, by the kept edges." : ""
    }`,
    small: smallPrint(studio, example),
    parts,
  });
}

/** The strongest edge of a text: its weight, and the tokens around its ends in lines. */
function exemplar(
  parts: string[],
  one: Exemplar,
  top: number,
  theme: Theme,
  width: number,
): number {
  const ink = INKS[theme];
  const left = EDGE + 52;
  let y = top + LINE - 3;
  parts.push(text(EDGE, y, weightText(one.weight), { size: SMALLEST, weight: 600 }));
  let x = left;
  const space = widthOf("n", SMALLEST);
  const put = (said: string, end: "query" | "key" | "") => {
    const bold = end ? 600 : 400;
    const word = fitted(visible(said, 24), SMALLEST, width - EDGE - left);
    const wide = widthOf(word, SMALLEST, bold);
    if (x > left && x + wide > width - EDGE) [x, y] = [left, y + LINE - 2];
    parts.push(
      text(x, y, word, {
        size: SMALLEST,
        weight: end ? 600 : undefined,
        fill: end ? ink[end] : ink.faint,
      }),
    );
    x += wide + 0.5 * space;
  };
  const sides = (["both", "query", "key"] as const).filter((side) => one.pieces[side]);
  sides.forEach((side, n) => {
    const [tokens, first] = one.pieces[side]!;
    if (n) put("→", "");
    if (first > 0) put("…", "");
    tokens.forEach((token, at) => put(token, endAt(one, side, first + at)));
  });
  return y + 5;
}

/** How a score is spread: bars of texts, the middle half, the median. */
function strip(
  parts: string[],
  name: string,
  spread: Spread,
  box: { x: number; y: number; width: number },
  { colour }: Shown,
  theme: Theme,
): number {
  const ink = INKS[theme];
  const names = 78,
    number = 48;
  const left = box.x + names,
    wide = box.width - names - number;
  const x = (value: number) =>
    left + ((value - spread.low) / (spread.high - spread.low || 1)) * wide;
  const [, , low, median, high] = spread.quantiles;
  const middle = box.y + STRIP / 2;
  parts.push(
    text(box.x, middle, fitted(name, SMALLEST, names - 6), { size: SMALLEST, middle: true }),
    rect({ x: x(low), y: box.y, width: Math.max(x(high) - x(low), 1), height: STRIP }, ink.track),
  );
  const step = wide / spread.counts.length;
  barsOfCounts(spread.counts).forEach((height, n) => {
    if (!height) return;
    const high = height * (STRIP - 2);
    const at = { x: left + n * step + 0.3, y: box.y + STRIP - 1 - high };
    parts.push(rect({ ...at, width: step - 0.6, height: high }, colour(name, theme)));
  });
  const said = bounded(median, spread.bounds > 0, significant3);
  parts.push(
    line(x(median), box.y, x(median), box.y + STRIP, ink.ink, 1.4),
    text(box.x + box.width, middle, said, { size: SMALLEST, anchor: "end", middle: true }),
  );
  return box.y + STRIP + 4;
}

function words(
  parts: string[],
  found: CorpusHead,
  box: { x: number; y: number; width: number },
  theme: Theme,
): number {
  const ink = INKS[theme];
  let y = box.y;
  const some = found.words.slice(0, WORDS);
  const most = Math.max(...some.map(([, share]) => share), 1e-12);
  const names = box.width * 0.3;
  const numbers = widthOf("≥99.9 %, 99,999 times", SMALLEST) + 8;
  const wide = Math.max(box.width - names - numbers - 8, 10);
  for (const [word, share, count] of some) {
    const bar = { x: box.x + names, y: y + 4, width: (wide * share) / most, height: 7 };
    const said = `${bounded(share, found.bounds, percent)}, ${counted(count, "time")}`;
    parts.push(
      text(box.x, y + 11, fitted(visible(word, 24), SMALLEST, names - 8), {
        size: SMALLEST,
        fill: ink.key,
      }),
      rect(bar, ink.key, { opacity: 0.6, rx: "1" }),
      text(box.x + box.width, y + 11, said, {
        size: SMALLEST,
        fill: ink.faint,
        anchor: "end",
      }),
    );
    y += LINE;
  }
  return y + 6;
}
