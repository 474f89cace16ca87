// What a model predicts, and how that changes while some of its heads are off.

import { bound } from "../description";
import { counted, visible } from "../text";
import type { Example } from "../model";
import type { Card, Prediction } from "./card";
import { mostProbable, probabilities } from "./sampling";

export type Head = readonly [layer: number, head: number];

/** The heads that a link switches off, as "2.1-3.0"; those that there are. */
export const headsOff = (link: string, layers: readonly { heads: number }[]): Head[] =>
  link
    .split("-")
    .map((one) => one.split(".").map(Number) as [number, number])
    .filter(([layer, head]) => Number.isInteger(head) && head >= 0 && head < layers[layer]?.heads);

/** A head switched off or on, in a link. */
export function switched(link: string, layer: number, head: number): string {
  const [name, all] = [`${layer}.${head}`, link.split("-").filter(Boolean)];
  return (all.includes(name) ? all.filter((one) => one !== name) : [...all, name]).join("-");
}

/** The text of an example, which may have another name: of letters these in a row. */
export function textOf({ description }: Example, { sequences }: Card): string {
  if (description.read) return description.name;
  const tokens = description.sequences[sequences[0]] ?? [];
  const letters = tokens.filter((token) => !/^<.+>$/.test(token));
  return letters.every((token) => Array.from(token).length === 1)
    ? letters.join("")
    : description.name;
}

/** What a prediction chose, a place for each row of its logits. */
export interface Chosen {
  id: number;
  logits: Float32Array;
}

/** The tokens that a prediction is made of: those of a translation and what comes next, its end
 * where there was room; else the most probable token. */
export function chosenOf({ ids, logits, columns }: Prediction, card: Card): Chosen[] {
  const target = card.kind === "translator" ? ids[card.sequences[1]] : [];
  return Array.from({ length: logits.length / Math.max(columns, 1) }, (_, n) => {
    const row = logits.subarray(n * columns, (n + 1) * columns);
    return { id: target[n + 1] ?? mostProbable(probabilities(row), 1)[0][0], logits: row };
  });
}

/** The sum of the log-probabilities of some tokens, from the logits of each. */
export const logProbability = (ids: readonly number[], rows: readonly Pick<Chosen, "logits">[]) =>
  ids.reduce((sum, id, n) => sum + Math.log(probabilities(rows[n].logits)[id]), 0);

/** A token's probability, and that of before where it is known. */
export interface Chance {
  id: number;
  now: number;
  before: number | null;
}

/** The most probable tokens, now or before. */
export function chancesOf(now: Float64Array, before: Float64Array | null, count: number): Chance[] {
  const ids = new Set(mostProbable(now, count).map(([id]) => id));
  for (const [id] of before ? mostProbable(before, 3) : []) ids.add(id);
  return [...ids]
    .map((id) => ({ id, now: now[id], before: before?.[id] ?? null }))
    .sort((a, b) => b.now - a.now)
    .filter((one, n) => n < 3 || Math.max(one.now, one.before ?? 0) >= 5e-4);
}

/** A token as it is named among others: the end of a text by a word. */
export const tokenWords = (name: string, id: number, { end }: Card) =>
  id === end ? "the end" : visible(name, 24);

/** How far the weights of the page's model are from headloom's, as the export measured it. */
export function differenceWords({ bits, difference }: Card): string {
  const most = bound(difference.weights).replace("e-", "e−").replace("e+0", "");
  const measured = `measured on ${counted(difference.texts, "text")}.`;
  return bits === 8
    ? `8 bits: weights differ from 32 bits by up to ${most}, ${measured}`
    : `32 bits: weights within ${most} of headloom’s, ${measured}`;
}
