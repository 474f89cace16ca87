// The heads of a layer in words and numbers, as the analysis measured them.

import type { Heads, HeadScores, Layer, RoleWords } from "./description";
import type { Theme } from "./colour";
import { counted, minus, percent, weight2 } from "./text";

/** A measure that can be a role, of one head. */
export interface Bar {
  name: string;
  value: number;
  /** The score of random weights with the same entropy: mean and deviation; null: unknown. */
  random: [mean: number, deviation: number] | null;
}

const scoresOf = (heads: Heads, layer: number, head: number): HeadScores | undefined =>
  heads.heads?.[layer]?.[head];

/** The scores of a head as bars. */
export function barsOf(heads: Heads, layer: number, head: number): Bar[] {
  const known = scoresOf(heads, layer, head);
  if (!known) return [];
  return heads.roles
    .filter(({ name }) => name in known.scores && name in known.chance)
    .map(({ name }) => ({
      name,
      value: known.scores[name],
      random: known.chance[name],
    }));
}

/** A weight in two digits, or "" of none. */
export const besideToken = (weight: number) => (weight ? weight2(weight) : "");

/** The mean mass of a head's rows on edges that were not kept; null: not known yet. */
export const unkeptOf = (heads: Heads | null, layer: number, head: number) =>
  heads?.unkept[layer]?.[head] ?? null;

/** The share of mass missing in a head's picture; null: nothing, or not known yet. */
export function leftOut(
  heads: Heads,
  layer: number,
  head: number,
  picture: { exact: boolean } | undefined,
): number | null {
  if (!picture || picture.exact) return null;
  const share = unkeptOf(heads, layer, head);
  return share !== null && share >= 5e-4 ? share : null;
}

/** The name of a head's role; "": not known yet. */
export const roleOf = (heads: Heads, layer: number, head: number) =>
  scoresOf(heads, layer, head)?.role ?? "";

const wordsOf = (heads: Heads, role: string): RoleWords | undefined =>
  heads.roles.find(({ name }) => name === role);

/** Where a role stands in a legend. */
export const placeOf = (heads: Heads, role: string) =>
  heads.roles.findIndex(({ name }) => name === role);

/** A role's colour; of none that of the last. */
export const roleColour = (heads: Heads, theme: Theme, role: string) =>
  (wordsOf(heads, role) ?? heads.roles.at(-1))?.colours[theme] ?? "#808790";

/** The bar of a head's role, where the role is a measure. */
export const roleBar = (heads: Heads, layer: number, head: number): Bar | null =>
  barsOf(heads, layer, head).find(({ name }) => name === roleOf(heads, layer, head)) ?? null;

/** A measure of a head; null: it does not apply, or is not known yet. */
export const measureOf = (heads: Heads, layer: number, head: number, name: string) =>
  scoresOf(heads, layer, head)?.scores[name] ?? null;

/** Why the heads have no measures yet; "": they have. */
export function stateOf(heads: Heads): string {
  if (heads.state === "known") return "";
  if (heads.state.startsWith("failed")) return `Measuring the heads ${heads.state}.`;
  return "measuring …";
}

/** What stands for the role of a head that a page's model has read. */
const UNKNOWN = "role not measured";

export const titleOf = (heads: Heads, layer: number, head: number) =>
  wordsOf(heads, roleOf(heads, layer, head))?.title ?? (stateOf(heads) || UNKNOWN);

/** To which heads a measure does not apply: "8 cross heads have no distance."; "": to none. */
export function withoutWords(heads: Heads, layers: Layer[], name: string): string {
  const without = layers.flatMap((layer) =>
    Array.from({ length: layer.heads }, (_, head) => ({ layer, head })).filter(
      ({ head }) => measureOf(heads, layer.number, head, name) === null,
    ),
  );
  if (!heads.heads || !without.length) return "";
  const kinds = new Set(without.map(({ layer }) => layer.kind));
  const several = new Set(layers.map(({ kind }) => kind)).size > 1;
  const kind = several && kinds.size === 1 ? `${without[0].layer.kind} ` : "";
  const has = without.length === 1 ? "has" : "have";
  return `${counted(without.length, `${kind}head`)} ${has} no ${name}.`;
}

/** A head in a sentence: its role, its score, and the score of random weights. */
export function sentenceOf(heads: Heads, layer: Layer, head: number): string {
  const words = wordsOf(heads, roleOf(heads, layer.number, head));
  if (!words)
    return stateOf(heads) || "A page measures the roles of its own examples, not of typed texts.";
  const patches = layer.one && layer.queries === "patches";
  const looks = patches
    ? `Each patch looks ${words.phrase.replaceAll("token", "patch")}`
    : `${layer.one ? "Each token" : "Each target token"} looks ${words.phrase}`;
  const bar = roleBar(heads, layer.number, head);
  if (bar) {
    const [random, deviation] = bar.random?.map((number) => number.toFixed(3)) ?? [];
    const chance = random && ` (random weights: ${random} ± ${deviation})`;
    return `${looks}: mean weight ${minus(bar.value, 3)}${chance ?? ""}.`;
  }
  const broad = measureOf(heads, layer.number, head, "broad");
  if (broad === null) return `${looks}.`;
  return `${looks}: its weight is spread over about ${percent(broad)} of the keys it can look at.`;
}

/** The measures to choose as axes, with their titles: those that apply to some head. */
export function measuresOf(heads: Heads): [name: string, title: string][] {
  const all = heads.heads?.flat();
  if (!all) return Object.entries(heads.measures);
  return Object.entries(heads.measures).filter(([name]) =>
    all.some(({ scores }) => name in scores),
  );
}
