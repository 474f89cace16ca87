// Two traces side by side: see src/headloom/studio/comparing.py.

import { nonePixel, RAMPS, SCALES, type Theme, type Ticks } from "./colour";
import type { CellValue, Example, Layer, Opening } from "./model";
import { minus } from "./text";
import { half, NONE, Tiles, whole } from "./tiles";

/** What a number lies between; equal where it is known. */
export type Bounds = [low: number, high: number];

export interface LayerPair {
  numbers: [first: number, second: number];
  /** Whether the pictures of both are of whole matrices. */
  exact: [boolean, boolean];
  /** By head the share of a row's mass that is on other keys; null: not measured yet. */
  change: Bounds[] | null;
  /** By head, how much the mean entropy of a row grew. */
  entropy: number[] | null;
}

export interface Summary {
  names: [string, string];
  /** The first token that differs, in a sentence; "": they are the same. */
  difference: string;
  /** Why the two cannot be compared; "": they can. */
  problem: string;
  layers: LayerPair[];
  /** "measuring", "known", or "failed: ..." */
  state: string;
}

export interface ChangedEdge {
  query: number;
  key: number;
  before: Bounds;
  after: Bounds;
}

/** A layer of the first trace whose tokens are those of both, where the second has another. */
export function ofBoth(first: Layer, second: Layer): Layer {
  // Spaces at the stroke are at an end of their token.
  const spaces = (found: string) => "␣".repeat(found.length);
  const named = (one: string[], other: string[]) =>
    one.map((token, place) => {
      const there = other[place] ?? token;
      if (there === token) return token;
      return `${token.replace(/ +$/, spaces)}/${there.replace(/^ +/, spaces)}`;
    });
  return {
    ...first,
    queryTokens: named(first.queryTokens, second.queryTokens),
    keyTokens: named(first.keyTokens, second.keyTokens),
  };
}

export interface RankedHead {
  /** The number of its layer in the first trace. */
  layer: number;
  head: number;
  change: Bounds;
  entropy: number;
}

/** The example that another is compared with: by its name, else the next; -1: there is none. */
export function otherOf({ examples }: Opening, first: number, name: string): number {
  const named = examples.indexOf(name);
  if (named >= 0 && named !== first) return named;
  if (examples.length < 2) return -1;
  return first < examples.length ? (first + 1) % examples.length : 0;
}

/** All heads that are measured, the most changed first. */
export function ranked(summary: Summary): RankedHead[] {
  return summary.layers
    .flatMap(({ numbers, change, entropy }) =>
      (change ?? []).map((bounds, head) => ({
        layer: numbers[0],
        head,
        change: bounds,
        entropy: entropy?.[head] ?? NaN,
      })),
    )
    .sort((one, other) => middle(other.change) - middle(one.change));
}
const middle = ([low, high]: Bounds) => (low + high) / 2;

/** A number that is known, or what it lies between, rounded outwards. */
export function boundsText([low, high]: Bounds, digits = 3): string {
  if (low === null || high === null) return "no number";
  if (low === high) {
    const least = 10 ** -digits;
    if (low !== 0 && Math.abs(low) < least / 2)
      return low > 0 ? `< ${least.toFixed(digits)}` : `> −${least.toFixed(digits)}`;
    return minus(low, digits);
  }
  return `${minus(low, digits, "least")} to ${minus(high, digits, "most")}`;
}

/** What the weight of a cell lies between. */
export function boundsOf({ weight, below, hidden }: CellValue): Bounds {
  if (weight !== null) return [weight, weight];
  return hidden ? [0, 0] : [0, below ?? 1];
}

/** What the second less the first lies between. */
export const less = (second: Bounds, first: Bounds): Bounds => [
  second[0] - first[1],
  second[1] - first[0],
];

/** Where a difference stands on a scale of weights, -1 to 1. */
export function signed(difference: number, scale: keyof typeof SCALES): number {
  const to = Math.min(Math.max(SCALES[scale].to(Math.abs(difference)), 0), 1);
  return difference < 0 ? -to : to;
}

/** The ticks of the scale of differences: where each stands, from 0 to 1, and what it says. */
export function differenceTicks(scale: keyof typeof SCALES): Ticks {
  const some = SCALES[scale].ticks.filter((weight) => weight >= (scale === "log" ? 1e-4 : 0.2));
  const sizes = scale === "root" ? [0.25, 1] : scale === "linear" ? [0.5, 1] : some;
  return [...sizes.map((size) => -size).reverse(), 0, ...sizes].map((difference) => {
    const size = Math.abs(difference);
    const said = size === 1 || size >= 0.01 || !size ? String(size) : size.toExponential(0);
    return [
      (1 + signed(difference, scale)) / 2,
      `${difference < 0 ? "−" : ""}${said.replace("e-", "e−")}`,
    ];
  });
}

/** How much a head changed, in a sentence; null: not measured yet. */
export function changeWords(change: Bounds | null, entropy: number | null): string {
  if (!change) return "How much it changed is being measured …";
  const [low, high] = change;
  if (low === 0 && high === 0) return "Its weights are the same in both.";
  const much =
    low === high ? boundsText(change) : `between ${boundsText(change).replace(" to ", " and ")}`;
  const grown =
    entropy === null || Math.abs(entropy) < 0.005
      ? "The mean entropy of a row is the same."
      : `Mean entropy of a row: ${entropy > 0 ? "+" : ""}${minus(entropy, 2)} nats.`;
  return `Of a row’s mass ${much} is on other keys in the second, on average. ${grown}`;
}

/** A colour for each half-precision number from -1 to 1, and one for what is no number; 0 is in the
 * middle of the ramp. */
export function signedLookup(
  table: Uint32Array,
  scale: keyof typeof SCALES,
  none: number,
): Uint32Array {
  const found = new Uint32Array(65536).fill(table[255]).fill(table[0], 0x8000);
  found.fill(none, NONE, 0x8000).fill(none, 0x8000 | NONE);
  for (let n = 0; n <= half(1); n++)
    for (const [bits, sign] of [
      [n, 1],
      [n | 0x8000, -1],
    ])
      found[bits] = table[Math.round(127.5 + 127.5 * signed(sign * whole(n), scale))];
  return found;
}

/** Tiles of the second matrix less the first: what is sure of it. */
export class DifferenceTiles extends Tiles {
  constructor(
    example: Example,
    private readonly other: number,
    layer: Layer,
    head: number,
    of: "max" | "mass",
    /** Whether both matrices are whole. */
    private readonly exact: boolean,
    arrived: () => void,
  ) {
    super(example, layer, head, of, arrived);
  }

  override colours(theme: Theme, scale: keyof typeof SCALES): Uint32Array {
    return signedLookup(RAMPS[theme].difference, scale, nonePixel(theme));
  }

  /** Of bounds there is no number. */
  override word(bits: number): string {
    const difference = (bits & 0x8000 ? -1 : 1) * whole(bits & 0x7fff);
    if (!this.exact) return "";
    if (Number.isNaN(difference)) return "NaN";
    return Math.abs(difference) < 0.005 ? "" : minus(difference, 2);
  }

  protected override path(level: number, row: number, column: number): string {
    const head = `layers/${this.layer.number}/heads/${this.head}`;
    const tile = `${this.of}/${level}/${row}/${column}`;
    return `compare/${this.example.number}/${this.other}/${head}/${tile}`;
  }
}
