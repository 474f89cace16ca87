// Every head in groups of rows: each kind apart, or all of them in one order.

import { KINDS, type Kind, type Layer } from "../model";

export interface Cell {
  layer: number;
  head: number;
}

export interface HeadGroup {
  title: string;
  note: string;
  columns: number;
  rows: { label: string; cells: Cell[] }[];
  /** Whether rows are layers and columns heads. */
  numbered: boolean;
}

export const headsOf = (layer: Layer): Cell[] =>
  Array.from({ length: layer.heads }, (_, head) => ({ layer: layer.number, head }));

/** Layers as rows, each kind apart. several: whether the trace has more than one sequence. */
export function groupsByKind(layers: Layer[], several: boolean): HeadGroup[] {
  return (Object.keys(KINDS) as Kind[])
    .map((kind) => {
      const rows = layers.filter((layer) => layer.kind === kind);
      const [title, two, one] = KINDS[kind];
      return {
        title,
        note: several ? two : one,
        columns: Math.max(0, ...rows.map((layer) => layer.heads)),
        rows: rows.map((layer) => ({ label: `L${layer.index}`, cells: headsOf(layer) })),
        numbered: true,
      };
    })
    .filter((group) => group.rows.length);
}

/** All heads in one group, in an order of their own; those that are alike stay as they are. */
export function groupInOrder(
  layers: Layer[],
  note: string,
  compare: (one: Cell, other: Cell) => number,
): HeadGroup[] {
  const all = layers.flatMap(headsOf).sort(compare);
  const square = Math.ceil(Math.sqrt(all.length * 1.6));
  const columns = Math.max(...layers.map((layer) => layer.heads), square);
  const rows = [];
  for (let start = 0; start < all.length; start += columns)
    rows.push({ label: "", cells: all.slice(start, start + columns) });
  return [{ title: "", note, columns, rows, numbered: false }];
}
