// The heads view as a figure.

import { INKS, rampColour, weightTicks, type Theme } from "../colour";
import { headName, type Example, type Heads } from "../model";
import { dotOf, overviewTable, type Picture } from "../overview";
import type { Figure, Studio } from "../studio.svelte";
import { bounded, notShown, percent, short } from "../text";
import { leftOut, measureOf, roleBar, roleColour, roleOf } from "../sentences";
import type { HeadGroup } from "../views/headGroups";
import { rampOf } from "./matrixParts";
import { smallPrint } from "./print";
import { EDGE, figure, image, legend, rect, SMALLEST, text, widthOf } from "./svg";

const SIDE = 22;
const MOST = 60;
/** Heads that are smaller than this are no longer recognized. */
const LEAST = 14;
/** How high a figure is at most for its width, if it can be: a page of paper less its margins. */
const PAGE = 1.35;

interface Shown {
  example: Example;
  heads: Heads;
  groups: HeadGroup[];
  pictures: (Picture[] | null)[];
}

export function headsFigure(studio: Studio, shown: Shown, theme: Theme, wide: number): Figure {
  const { example, heads, groups, pictures } = shown;
  const ink = INKS[theme];
  const byRole = studio.state.colour === "role";
  const all = groups.flatMap((group) => group.rows.flatMap((row) => row.cells));
  const most = Math.max(
    ...all.map(({ layer, head }) => measureOf(heads, layer, head, "entropy") ?? 0),
    1e-9,
  );
  const columns = Math.max(...groups.map((group) => group.columns));
  const left = EDGE + SIDE;
  const gap = wide < 400 ? 3 : 8;

  // Under a tile in one line, in two, or not at all: the strip and the legend name the role.
  const words = (layer: number, head: number): string[] => {
    const entropy = measureOf(heads, layer, head, "entropy") ?? 0,
      bar = roleBar(heads, layer, head);
    const second = byRole
      ? bar
        ? [bounded(bar.value, bar.bound, short)]
        : []
      : [entropy.toFixed(2)];
    if (!groups[0].numbered)
      return [
        headName(example, example.layers[layer], head).replace(/^(\w)\w* L/, "$1 L"),
        ...second,
      ];
    return byRole ? [roleOf(heads, layer, head), ...second] : second;
  };
  const widest = (texts: string[]) => Math.max(0, ...texts.map((one) => widthOf(one, SMALLEST)));
  const captions = all.map(({ layer, head }) => words(layer, head));
  const leaves = (layer: number, head: number) =>
    leftOut(heads, layer, head, pictures[layer]?.[head]);
  const partial = all
    .map(({ layer, head }) => leaves(layer, head))
    .filter((share) => share !== null);
  const [whole, parted, without] = [
    widest(captions.map((of) => of.join(" "))),
    widest(captions.flat()),
    widest(partial.map((share) => `−${percent(share)}`)),
  ];

  /** The layers of a kind from top to bottom, or in several columns of layers beside each other. */
  const layout = (beside: number) => {
    const room = wide - EDGE - beside * left - (beside * columns - 1) * gap;
    const tile = Math.max(3, Math.min(MOST, room / (beside * columns)));
    const under = whole <= tile ? 1 : parted <= tile ? 2 : 0;
    const missing = partial.length && without <= tile ? 1 : 0;
    const row = tile + 8 + 11 * (under + missing) + (wide < 400 ? 1 : 3);
    const rows = groups.map((group) => Math.ceil(group.rows.length / beside));
    const height = rows.reduce((sum, of) => sum + of * row + 35, 0);
    return { beside, tile, under, missing, row, height };
  };
  let chosen = layout(1);
  for (let beside = 2; groups[0].numbered && chosen.height > PAGE * wide; beside++) {
    const next = layout(beside);
    if (next.tile < LEAST) break;
    chosen = next;
  }
  const { beside, tile, under, missing, row: high } = chosen;
  const step = tile + gap;
  const label = widthOf(`H${columns - 1}`, SMALLEST) < step ? "H" : "";
  const every = Math.ceil((widthOf(`${label}${columns - 1}`, SMALLEST) + 1) / step);
  const table = overviewTable(theme);

  const parts: string[] = [];
  let y = 4;
  for (const group of groups) {
    parts.push(
      text(EDGE, y + 8, [group.title, group.note].filter(Boolean).join(": "), {
        size: SMALLEST,
        fill: ink.faint,
      }),
    );
    y += 16;
    const rows = Math.ceil(group.rows.length / beside);
    const starts = Array.from({ length: Math.ceil(group.rows.length / rows) }, (_, band) => [
      band * rows,
      left + band * (columns * step + left - gap),
    ]);
    if (group.numbered) {
      for (const [, start] of starts)
        for (let head = 0; head < group.columns; head += every)
          parts.push(
            text(start + head * step + tile / 2, y + 8, `${label}${head}`, {
              size: SMALLEST,
              fill: ink.faint,
              anchor: "middle",
            }),
          );
      y += 13;
    }
    for (const [first, start] of starts) {
      group.rows.slice(first, first + rows).forEach((row, n) => {
        const top = y + n * high;
        parts.push(
          text(start - 5, top + tile / 2 + 3, row.label, {
            size: SMALLEST,
            fill: ink.faint,
            anchor: "end",
          }),
        );
        row.cells.forEach(({ layer, head }, place) => {
          const x = start + place * step;
          const { rows, columns } = example.pictures.blocks(example.layers[layer]);
          const shades = pictures[layer]?.[head]?.shades;
          const box = { x, y: top, width: tile, height: tile };
          if (shades) parts.push(image(box, { shades, rows, columns }, table));
          const entropy = measureOf(heads, layer, head, "entropy") ?? 0;
          const colour = byRole
            ? roleColour(heads, theme, roleOf(heads, layer, head))
            : rampColour(theme, 0.15 + (0.75 * entropy) / most);
          parts.push(rect({ x, y: top + tile + 1, width: tile, height: 2.5 }, colour));
          const caption = words(layer, head);
          const share = leaves(layer, head);
          const lines = under === 1 ? [caption.join(" ")] : under === 2 ? caption : [];
          if (missing && share !== null) {
            while (lines.length < under) lines.push("");
            lines.push(`−${percent(share)}`);
          }
          lines.forEach((line, at) => {
            const below = top + tile + 13 + 11 * at;
            if (line) parts.push(text(x, below, line, { size: SMALLEST, fill: ink.faint }));
          });
        });
      });
    }
    y += rows * high + 6;
  }
  if (byRole) {
    const names = [...new Set(all.map(({ layer, head }) => roleOf(heads, layer, head)))];
    const drawn = legend(
      names.filter(Boolean).map((name) => [name, roleColour(heads, theme, name)]),
      left,
      y + 8,
      wide - EDGE,
      ink.faint,
    );
    parts.push(drawn.svg);
    y += drawn.high + 4;
  }
  const ramp = { x: left, y, width: Math.min(180, wide - left - EDGE) };
  parts.push(...rampOf(theme, "weight", ramp, weightTicks("root")));
  const dots = [
    ...new Set(all.map(({ layer }) => dotOf(example.pictures.blocks(example.layers[layer])))),
  ].join("; ");
  const scale = "square-root scale; rows are queries, columns keys.";
  const unshown = notShown(partial, all.length, missing ? ", as said below each head" : "");
  return figure({
    width: wide,
    height: y + 22,
    theme,
    title: "Every head",
    note: `${dots[0].toUpperCase()}${dots.slice(1)}, ${scale}${unshown && ` ${unshown}.`}`,
    small: smallPrint(studio, example),
    parts,
  });
}
