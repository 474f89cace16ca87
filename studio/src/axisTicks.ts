// Ticks of an axis of positions and their labels: positions, or for audio, seconds.

import { grouped } from "./text";

export interface Tick {
  /** A position; of a second it may lie between two. */
  at: number;
  text: string;
}

/** The smallest 1, 2 or 5 times a power of ten that is not below `least`. */
function round(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least) + 1e-9);
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least * (1 - 1e-9))!;
}

/** The same, as a whole number. */
export const nice = (least: number) => round(Math.max(least, 1));

/**
 * The ticks from one position to another, at least `apart` positions apart.
 *
 * seconds: the moment of each position, rising; null: they have none.
 */
export function ticksOf(
  from: number,
  to: number,
  apart: number,
  seconds: number[] | null = null,
): Tick[] {
  if (seconds) return ticksOfSeconds(from, to, apart, seconds);
  const step = nice(apart);
  const found: Tick[] = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step)
    found.push({ at, text: grouped(at) });
  return found;
}

function ticksOfSeconds(from: number, to: number, apart: number, seconds: number[]): Tick[] {
  const first = Math.max(0, Math.ceil(from)),
    last = Math.min(seconds.length - 1, Math.floor(to));
  if (last <= first) return [];
  const step = round((apart * (seconds[last] - seconds[first])) / (last - first));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found: Tick[] = [];
  for (let n = Math.ceil(seconds[first] / step - 1e-9), at = first; ; n++) {
    const second = n * step;
    if (second > seconds[last] + 1e-9) return found;
    while (at < last - 1 && seconds[at + 1] <= second) at++;
    const between = (second - seconds[at]) / (seconds[at + 1] - seconds[at]);
    found.push({ at: at + between, text: `${second.toFixed(digits)} s` });
  }
}

/** Moments that rise from position to position; null: they do not, or there are none. */
export const rising = (seconds: number[] | undefined): number[] | null =>
  seconds?.length && seconds.every((second, n) => n === 0 || second > seconds[n - 1])
    ? seconds
    : null;

/** The time of a position as text; "": it has none. */
export const momentOf = (seconds: number[] | null, place: number) =>
  seconds ? `${seconds[place].toFixed(2)} s` : "";
