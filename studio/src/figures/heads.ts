// The heads view as a figure.

import { INKS, rampColour, type Theme } from "../colour";
import { headName, type Example, type Heads } from "../model";
import { dotOf, overviewTable, type Picture } from "../overview";
import type { Figure, Studio } from "../studio.svelte";
import { notShown, percent, short } from "../text";
import { bounded, leftOut, measureOf, roleBar, roleColour, roleOf } from "../sentences";
import type { HeadGroup } from "../views/headGroups";
import { smallPrint } from "./print";
import { EDGE, figure, image, legend, rect, SMALLEST, text, widthOf } from "./svg";

const SIDE = 22;
const MOST = 60;

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
  const tile = Math.max(3, Math.min(MOST, (wide - left - EDGE - (columns - 1) * gap) / columns));
  const step = tile + gap;

  // Under a tile in one line, in two, or not at all: the strip and the legend name the role.
  const words = (layer: number, head: number): string[] => {
    const entropy = measureOf(heads, layer, head, "entropy") ?? 0,
      bar = roleBar(heads, layer, head);
    const second = byRole
      ? bar
        ? [bounded(short(bar.value), bar.bound)]
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
  const under =
    widest(captions.map((of) => of.join(" "))) <= tile
      ? 1
      : widest(captions.flat()) <= tile
        ? 2
        : 0;
  const label = widthOf(`H${columns - 1}`, SMALLEST) < step ? "H" : "";
  const every = Math.ceil((widthOf(`${label}${columns - 1}`, SMALLEST) + 1) / step);
  const leaves = (layer: number, head: number) =>
    leftOut(heads, layer, head, pictures[layer]?.[head]);
  const partial = all
    .map(({ layer, head }) => leaves(layer, head))
    .filter((share) => share !== null);
  const missing =
    partial.length && widest(partial.map((share) => `−${percent(share)}`)) <= tile ? 1 : 0;
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
    if (group.numbered) {
      for (let head = 0; head < group.columns; head += every)
        parts.push(
          text(left + head * step + tile / 2, y + 8, `${label}${head}`, {
            size: SMALLEST,
            fill: ink.faint,
            anchor: "middle",
          }),
        );
      y += 13;
    }
    for (const row of group.rows) {
      parts.push(
        text(left - 5, y + tile / 2 + 3, row.label, {
          size: SMALLEST,
          fill: ink.faint,
          anchor: "end",
        }),
      );
      row.cells.forEach(({ layer, head }, place) => {
        const x = left + place * step;
        const { rows, columns } = example.pictures.blocks(example.layers[layer]);
        const shades = pictures[layer]?.[head]?.shades;
        const box = { x, y, width: tile, height: tile };
        if (shades) parts.push(image(box, { shades, rows, columns }, table));
        const entropy = measureOf(heads, layer, head, "entropy") ?? 0;
        const colour = byRole
          ? roleColour(heads, theme, roleOf(heads, layer, head))
          : rampColour(theme, 0.15 + (0.75 * entropy) / most);
        parts.push(rect({ x, y: y + tile + 1, width: tile, height: 2.5 }, colour));
        const caption = words(layer, head);
        (under === 1 ? [caption.join(" ")] : under === 2 ? caption : []).forEach((line, n) =>
          parts.push(text(x, y + tile + 13 + 11 * n, line, { size: SMALLEST, fill: ink.faint })),
        );
        const share = leaves(layer, head);
        if (missing && share !== null)
          parts.push(
            text(x, y + tile + 13 + 11 * under, `−${percent(share)}`, {
              size: SMALLEST,
              fill: ink.faint,
            }),
          );
      });
      y += tile + 8 + 11 * (under + missing) + (wide < 400 ? 1 : 3);
    }
    y += 6;
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
  const ramp = Math.min(180, wide - left - EDGE);
  for (let n = 0; n < 60; n++)
    parts.push(
      rect(
        { x: left + (n * ramp) / 60, y, width: ramp / 60 + 0.4, height: 7 },
        rampColour(theme, n / 59),
      ),
    );
  parts.push(
    text(left, y + 18, "0", { size: SMALLEST, fill: ink.faint }),
    text(left + ramp, y + 18, "1", { size: SMALLEST, fill: ink.faint, anchor: "end" }),
  );
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
