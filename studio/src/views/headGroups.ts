// Every head in groups of rows: each kind apart, or all of them in one order.

import { KINDS, noteOf, type Heads, type Kind, type Layer } from "../description";
import { measureOf, placeOf, roleBar, roleOf } from "../sentences";

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

/** The attention of a kind of layers in words, for each of its sequences. */
export const notesOf = (kind: Kind, layers: { queries: string; keys: string }[]) =>
  [...new Set(layers.map(({ queries, keys }) => noteOf(kind, queries, keys)))].join("; ");

/** Layers as rows, each kind apart. */
export function groupsByKind(layers: Layer[]): HeadGroup[] {
  return (Object.keys(KINDS) as Kind[])
    .map((kind) => {
      const rows = layers.filter((layer) => layer.kind === kind);
      return {
        title: KINDS[kind],
        note: notesOf(kind, rows),
        columns: Math.max(0, ...rows.map((layer) => layer.heads)),
        rows: rows.map((layer) => ({ label: `L${layer.number}`, cells: headsOf(layer) })),
        numbered: true,
      };
    })
    .filter((group) => group.rows.length);
}

/** The head that an arrow leads to from another, at most to the end of a row; null: no arrow. */
export function neighbour(groups: HeadGroup[], from: Cell, key: string): Cell | null {
  const moves: Record<string, [number, number]> = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, -1],
    ArrowDown: [0, 1],
  };
  if (!(key in moves)) return null;
  const [dx, dy] = moves[key];
  const rows = groups.flatMap((group) => group.rows);
  const isHere = (cell: Cell) => cell.layer === from.layer && cell.head === from.head;
  const here = rows.findIndex((row) => row.cells.some(isHere));
  const column = (rows[here]?.cells.findIndex(isHere) ?? 0) + dx;
  const { cells } = rows[Math.min(Math.max(here + dy, 0), rows.length - 1)];
  return cells[Math.min(Math.max(column, 0), cells.length - 1)];
}

/** The groups of an order that is chosen: layer by layer, by entropy, or by role. */
export function groupsInOrder(
  order: "layer" | "role" | "entropy",
  layers: Layer[],
  heads: Heads,
): HeadGroup[] {
  if (order === "layer") return groupsByKind(layers);
  const entropy = ({ layer, head }: Cell) => measureOf(heads, layer, head, "entropy") ?? 0;
  if (order === "entropy")
    return groupInOrder(
      layers,
      "by entropy, lowest first",
      (one, other) => entropy(one) - entropy(other),
    );
  const place = ({ layer, head }: Cell) => placeOf(heads, roleOf(heads, layer, head));
  const score = (cell: Cell) => roleBar(heads, cell.layer, cell.head)?.value ?? -entropy(cell);
  return groupInOrder(
    layers,
    "by role, highest score first",
    (one, other) => place(one) - place(other) || score(other) - score(one),
  );
}

/** All heads in one group, sorted; equal heads keep their order. */
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
