// A long text with its shading as a figure: the paragraphs around the word in question.

import { INKS, type Theme } from "../colour";
import { headName, type Example, type Layer } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { areWords, flowing, visible } from "../text";
import { smallPrint } from "./print";
import { EDGE, figure, rect, text, widthOf } from "./svg";

const MOST = 900;

export function flowFigure(
  studio: Studio,
  example: Example,
  layer: Layer,
  chosen: number[],
  query: number,
  looked: Map<number, number>,
  looking: Map<number, number>,
  theme: Theme,
  wide: number,
): Figure {
  const ink = INKS[theme];
  const size = wide < 400 ? 10 : 12,
    high = Math.round(size * 1.8);
  const parts: string[] = [];
  let y = 12;
  const column = (tokens: string[], from: number, to: number, keys: boolean, queries: boolean) => {
    const words = areWords(tokens);
    let x = EDGE;
    for (let place = from; place < to; place++) {
      const { text: shown, space, line } = flowing(tokens[place], words);
      const long = widthOf(shown, size, 400, 1);
      if (space && place > from) x += size / 3;
      if (x > EDGE && x + long > wide - EDGE) [x, y] = [EDGE, y + high];
      const share = keys ? (looked.get(place) ?? 0) : 0;
      if (share > 0.005)
        parts.push(
          rect(
            x - 1,
            y - size,
            long + 2,
            size * 1.4,
            ink.seen,
            ` fill-opacity="${Math.min(1, 0.12 + 0.88 * Math.sqrt(share)).toFixed(2)}" rx="2"`,
          ),
        );
      const seeing = queries ? (looking.get(place) ?? 0) : 0;
      if (seeing > 0.01)
        parts.push(
          rect(
            x,
            y + size * 0.4,
            long,
            1.6,
            ink.query,
            ` fill-opacity="${Math.min(1, 0.15 + Math.sqrt(seeing)).toFixed(2)}"`,
          ),
        );
      const on = queries && place === query;
      parts.push(
        text(x, y, shown, { size, fill: on ? ink.query : ink.ink, weight: on ? 700 : undefined }),
      );
      x += long + 1;
      if (line) [x, y] = [EDGE, y + high];
    }
    y += high + 4;
  };
  const around = (count: number, at: number): [number, number] => {
    const start = Math.max(0, Math.min((at < 0 ? 0 : at) - MOST / 2, count - MOST));
    return [start, Math.min(count, start + MOST)];
  };
  column(layer.queryTokens, ...around(layer.rows, query), layer.one, true);
  if (!layer.one) column(layer.keyTokens, ...around(layer.columns, -1), true, false);
  const word = query >= 0 ? `“${visible(layer.queryTokens[query], 24)}” in ` : "";
  const heads =
    chosen.length === 1
      ? headName(example, layer, chosen[0])
      : `layer ${layer.index}, ${chosen.length} heads`;
  return figure(
    wide,
    y - high + 6,
    theme,
    word + heads,
    "shaded: what the word looks at; underlined: what looks at it",
    smallPrint(studio, example),
    parts.join(""),
  );
}
