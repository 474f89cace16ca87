// A small curve without axes, with a dot where it is now.

import { line } from "d3-shape";
import { stepScale } from "../losses";
import { grouped, significant3 } from "../text";

/** A number of a series in words. */
export const numberWords = (number: number | null) =>
  number === null ? "none" : significant3(number);

/** Where a series begins and where it ends; "": it is the same all along. */
export function fromTo(series: (number | null)[]): string {
  if (series.every((number) => number === series[0])) return "";
  return `from ${numberWords(series[0])} to ${numberWords(series[series.length - 1])}`;
}

/** Labels at the ends of an axis of steps: the first, and the last where it differs. */
export const stepEnds = (first: number, last: number): string[] =>
  last > first ? [`step ${grouped(first)}`, grouped(last)] : [`step ${grouped(first)}`];

/** The path of a series, and where it is at one of its places; null: there it has no number.
 *
 * Snapshots are close together where much happens, so they stand at equal distances. */
export function sparkline(series: (number | null)[], at: number, wide: number, high: number) {
  const numbers = series.filter((number) => number !== null);
  const [low, top] = [Math.min(...numbers), Math.max(...numbers)];
  const x = (n: number) => (wide * n) / Math.max(series.length - 1, 1);
  const y = (number: number) => high - 2 - ((high - 4) * (number - low)) / (top - low || 1);
  const path = line<number | null>()
    .defined((number) => number !== null)
    .x((_, n) => x(n))
    .y((number) => y(number ?? 0))(series);
  const now = series[at];
  return { path: path ?? "", x: x(at), y: now === null ? null : y(now), ends: fromTo(series) };
}

/** The same along the steps of a training, on the logarithmic axis of the loss.
 *
 * The dot is at the last measure that is not after `now`, whose number is given too. */
export function stepline(
  series: (number | null)[],
  steps: number[],
  now: number,
  wide: number,
  high: number,
) {
  const numbers = series.filter((number) => number !== null);
  const [low, top] = [Math.min(...numbers), Math.max(...numbers)];
  const x = stepScale(steps.at(-1) ?? 1, [0, wide]);
  const y = (number: number) => high - 2 - ((high - 4) * (number - low)) / (top - low || 1);
  const path = line<number | null>()
    .defined((number) => number !== null)
    .x((_, n) => x(steps[n]))
    .y((number) => y(number ?? 0))(series);
  const place = steps.findLastIndex((step, n) => step <= now && series[n] !== null);
  const value = place < 0 ? null : series[place];
  const at = place < 0 ? 0 : steps[place];
  const ends = fromTo(numbers);
  return { path: path ?? "", x: x(at), y: value === null ? null : y(value), value, ends };
}
