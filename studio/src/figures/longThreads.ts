// A long text with its shading as a figure: the paragraphs around the word in question.

import { INKS, type Theme } from "../colour";
import { headName, type Example, type Layer } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { areWords, flowing, grouped, percent, visible } from "../text";
import { smallPrint } from "./print";
import { EDGE, figure, rect, text, widthOf } from "./svg";

const MOST = 900;

interface Shown {
  example: Example;
  layer: Layer;
  chosen: number[];
  query: number;
  /** By key the share that the query in question gives it. */
  toKeys: Map<number, number>;
  /** By query the weight that it gives to the token in question. */
  fromQueries: Map<number, number>;
}

export function longThreadsFigure(
  studio: Studio,
  shown: Shown,
  theme: Theme,
  wide: number,
): Figure {
  const { example, layer, chosen, query, toKeys, fromQueries } = shown;
  const ink = INKS[theme];
  const size = wide < 400 ? 10 : 12;
  const high = Math.round(size * 1.8);
  const parts: string[] = [];
  let y = 12;
  const column = (tokens: string[], from: number, to: number, keys: boolean, queries: boolean) => {
    const words = areWords(tokens);
    let x = EDGE;
    const gap = () => {
      parts.push(text(x, y, "…", { size, fill: ink.faint }));
      x += widthOf("… ", size);
    };
    if (from > 0) gap();
    for (let place = from; place < to; place++) {
      const { text: word, space, line } = flowing(tokens[place], words);
      const width = widthOf(word, size, 400, 1);
      if (space && place > from) x += size / 3;
      if (x > EDGE && x + width > wide - EDGE) [x, y] = [EDGE, y + high];
      const share = keys ? (toKeys.get(place) ?? 0) : 0;
      if (share > 0.005) {
        const ground = { x: x - 1, y: y - size, width: width + 2, height: size * 1.4 };
        const opacity = Math.min(1, 0.12 + 0.88 * Math.sqrt(share));
        parts.push(rect(ground, ink.seen, { opacity, rx: "2" }));
      }
      const weight = queries ? (fromQueries.get(place) ?? 0) : 0;
      if (weight > 0.01) {
        const under = { x, y: y + size * 0.4, width, height: 1.6 };
        parts.push(rect(under, ink.query, { opacity: Math.min(1, 0.15 + Math.sqrt(weight)) }));
      }
      const on = queries && place === query;
      parts.push(
        text(x, y, word, { size, fill: on ? ink.query : ink.ink, weight: on ? 700 : undefined }),
      );
      x += width + 1;
      if (line) [x, y] = [EDGE, y + high];
    }
    if (to < tokens.length) gap();
    y += high + 4;
  };
  const around = (count: number, at: number): [number, number] => {
    const start = Math.max(0, Math.min((at < 0 ? 0 : at) - MOST / 2, count - MOST));
    return [start, Math.min(count, start + MOST)];
  };
  const strongest = [...toKeys].reduce((a, b) => (b[1] > a[1] ? b : a), [-1, 0])[0];
  const queries = around(layer.rows, query);
  const keys = layer.one ? queries : around(layer.columns, strongest);
  column(layer.queryTokens, ...queries, layer.one, true);
  if (!layer.one) column(layer.keyTokens, ...keys, true, false);
  const word = query >= 0 ? `“${visible(layer.queryTokens[query], 24)}” in ` : "";
  const heads =
    chosen.length === 1
      ? headName(example, layer, chosen[0])
      : `layer ${layer.index}, ${chosen.length} heads`;
  const excerpt = ([from, to]: [number, number], count: number, of: string) =>
    to - from < count ? `${of} ${grouped(from)} to ${grouped(to - 1)} of ${grouped(count)}` : "";
  const outside = [...toKeys]
    .filter(([place]) => place < keys[0] || place >= keys[1])
    .reduce((sum, [, share]) => sum + share, 0);
  const note = [
    "shaded: what the word looks at; underlined: what looks at it",
    excerpt(queries, layer.rows, layer.one ? "tokens" : "queries"),
    layer.one ? "" : excerpt(keys, layer.columns, "keys"),
    outside > 5e-4 ? `words outside hold at least ${percent(outside, "least")}` : "",
  ];
  return figure({
    width: wide,
    height: y - high + 6,
    theme,
    title: word + heads,
    note: note.filter(Boolean).join("; "),
    small: smallPrint(studio, example),
    parts,
  });
}
