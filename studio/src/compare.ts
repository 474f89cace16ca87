// Two traces side by side: see src/headloom/studio/comparing.py.

import { nonePixel, RAMPS, SCALES, type Theme, type Ticks } from "./colour";
import type { Layer, Opening } from "./description";
import type { Example } from "./model";
import { minus } from "./text";
import { half, NONE, Tiles, whole } from "./tiles";

export interface LayerPair {
  numbers: [first: number, second: number];
  /** Whether both have whole matrices; else the kept edges alone are compared. */
  exact: boolean;
  /** By head the share of a row's mass that is on other keys; null: not measured yet. */
  change: number[] | null;
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
  /** Whether all layers are measured. */
  whole: boolean;
}

export interface ChangedEdge {
  query: number;
  key: number;
  before: number;
  after: number;
}

/** A layer of the first trace with the tokens of both where they differ: "tired/wide". */
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
  change: number;
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
      (change ?? []).map((much, head) => ({
        layer: numbers[0],
        head,
        change: much,
        entropy: entropy?.[head] ?? NaN,
      })),
    )
    .sort((one, other) => other.change - one.change);
}

/** A number with some digits; "< 0.001" where it is too small for them. */
export function changeText(number: number | null, digits = 3): string {
  if (number === null) return "no number";
  const least = 10 ** -digits;
  if (number !== 0 && Math.abs(number) < least / 2)
    return number > 0 ? `< ${least.toFixed(digits)}` : `> −${least.toFixed(digits)}`;
  return minus(number, digits);
}

/** Where a difference stands on a scale of weights, -1 to 1. */
export function signed(difference: number, scale: keyof typeof SCALES): number {
  const to = Math.min(Math.max(SCALES[scale].to(Math.abs(difference)), 0), 1);
  return difference < 0 ? -to : to;
}

/** Ticks of the scale of differences: position, 0 to 1, and text. */
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
export function changeWords(change: number | null, entropy: number | null): string {
  if (change === null) return "Measuring the change …";
  if (change === 0) return "Its weights are the same in both.";
  const grown =
    entropy === null || Math.abs(entropy) < 0.005
      ? "The mean row entropy is the same."
      : `Change of the mean row entropy: ${entropy > 0 ? "+" : ""}${minus(entropy, 2)} nats.`;
  const much = `On average ${changeText(change)} of a row’s mass moved to other keys.`;
  return `${much} ${grown}`;
}

/** A colour for each half-precision number from -1 to 1, and one for NaN; 0 is in the middle of the
 * ramp. */
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

/** Tiles of the second matrix less the first. */
export class DifferenceTiles extends Tiles {
  constructor(
    example: Example,
    private readonly other: number,
    layer: Layer,
    head: number,
    of: "max" | "mass",
    arrived: () => void,
  ) {
    super(example, layer, head, of, arrived);
  }

  override colours(theme: Theme, scale: keyof typeof SCALES): Uint32Array {
    return signedLookup(RAMPS[theme].difference, scale, nonePixel(theme));
  }

  override word(bits: number): string {
    const difference = (bits & 0x8000 ? -1 : 1) * whole(bits & 0x7fff);
    if (Number.isNaN(difference)) return "NaN";
    return Math.abs(difference) < 0.005 ? "" : minus(difference, 2);
  }

  protected override path(level: number, row: number, column: number): string {
    const head = `layers/${this.layer.number}/heads/${this.head}`;
    const tile = `${this.of}/${level}/${row}/${column}`;
    return `compare/${this.example.number}/${this.other}/${head}/${tile}`;
  }
}
