// Every picture in a sentence.

import type { Heads, Layer, Measures } from "./model";
import type { Picture } from "./overview";
import { counted } from "./text";

export interface Looks {
  name: string;
  value: number;
  /** Whether it is at least that, of the kept edges alone. */
  bound: boolean;
  /** What even weights, or random ones of the same entropy, would give. */
  chance: number | null;
  spread: number | null;
}

const PHRASES: Record<string, string> = {
  previous: "the one before it",
  next: "the one after it",
  same: "itself",
  first: "the first token",
  last: "the last token",
  separator: "the separators",
  punctuation: "punctuation",
  partner: "those that look back at it",
  induction: "the token after an earlier copy of itself",
  duplicate: "earlier copies of itself",
  local: "its neighbours",
};

const NAMES: Record<string, string> = {
  previous: "previous-token head",
  next: "next-token head",
  same: "same-token head",
  first: "first-token sink",
  last: "last-token head",
  separator: "separator head",
  punctuation: "punctuation head",
  partner: "mutual head",
  local: "local head",
  induction: "induction head",
  duplicate: "duplicate-token head",
  retrieval: "retrieval head",
  broad: "broad head",
  focused: "focused head",
  mixed: "mixed head",
  "no number": "head without numbers",
};

const number = (measures: Measures, name: string) => {
  const found = measures[name];
  return typeof found === "number" ? found : null;
};

const PATTERNS = [
  "previous",
  "next",
  "same",
  "first",
  "separator",
  "punctuation",
  "induction",
  "duplicate",
  "local",
  "partner",
];

/** Where a head looks, in bars: what was measured, the analysis' scores once they are known. */
export function looksOf(heads: Heads, layer: number, head: number): Looks[] {
  const role = heads.roles?.[layer]?.[head];
  const measures = heads.layers[layer][head];
  return PATTERNS.filter((name) => number(measures, name) !== null).map((name) => ({
    name,
    value: number(measures, name)!,
    bound: measures.bounds.includes(name),
    chance: role ? (role.null?.[name]?.[0] ?? null) : (measures.even[name] ?? null),
    spread: role?.null?.[name]?.[1] ?? null,
  }));
}

/** A number, marked where it is a lower bound. */
export const bounded = (text: string, bound: boolean) => (bound ? `≥${text}` : text);

/** What a picture of a head leaves out: a share of its mass; null: nothing, or not known yet. */
export function leftOut(
  heads: Heads,
  layer: number,
  head: number,
  picture: Picture | undefined,
): number | null {
  if (!picture || picture.exact) return null;
  const share = number(heads.layers[layer][head], "unkept");
  return share !== null && share >= 5e-4 ? share : null;
}

/** A head's role: the analysis', else what stands out most from even weights. */
export function roleOf(heads: Heads, layer: number, head: number): string {
  const known = heads.roles?.[layer]?.[head];
  if (known) return known.role;
  if (heads.state === "measuring") return "none";
  const measures = heads.layers[layer][head];
  const looks = looksOf(heads, layer, head).filter((look) => look.name !== "local");
  const over = (look: Looks) => look.value - (look.chance ?? 0);
  const best = looks.sort((a, b) => over(b) - over(a))[0];
  if (best && over(best) > 0.25) return best.name;
  const local = number(measures, "local");
  if (local !== null && local - (measures.even.local ?? 0) > 0.35) return "local";
  if ((number(measures, "largest") ?? 0) > 0.6) return "focused";
  if ((number(measures, "spread") ?? 0) > 0.7 * (number(measures, "allowed") ?? 1)) return "broad";
  return "mixed";
}

/** The number that belongs to a head's role, where it has one. */
export function roleScore(heads: Heads, layer: number, head: number): number | null {
  return roleLook(heads, layer, head)?.value ?? null;
}

export function roleLook(heads: Heads, layer: number, head: number): Looks | null {
  const role = roleOf(heads, layer, head);
  return looksOf(heads, layer, head).find((look) => look.name === role) ?? null;
}

export const roleTitle = (role: string) =>
  NAMES[role] ?? (role === "none" || !role ? "no role that stands out" : `${role} head`);

export function sentenceOf(heads: Heads, layer: Layer, head: number): string {
  if (heads.state === "measuring") return "The heads are being measured …";
  const role = roleOf(heads, layer.number, head);
  const measures = heads.layers[layer.number][head];
  const subject = layer.one ? "Each token" : "Each target token";
  const look = looksOf(heads, layer.number, head).find((one) => one.name === role);
  if (look && PHRASES[role]) {
    const { chance, spread } = look;
    const random = spread === null ? "" : `${chance?.toFixed(3)} ± ${spread.toFixed(3)}.`;
    const even = chance === null ? "" : ` Spread evenly it would be ${chance.toFixed(3)}.`;
    const by = random ? ` Random weights of the same entropy: ${random}` : even;
    const mean = role === "local" ? "mean mass on them" : "mean weight";
    const value = `${look.bound ? "at least " : ""}${look.value.toFixed(3)}`;
    return `${subject} looks at ${PHRASES[role]}: ${mean} ${value}.${by}`;
  }
  const spread = number(measures, "spread") ?? 0;
  const largest = number(measures, "largest") ?? 0;
  const allowed = counted(Math.round(number(measures, "allowed") ?? 0), "key");
  const wide = `as if evenly at ${spread.toFixed(1)} of ${allowed}`;
  const weight = `its largest weight is ${largest.toFixed(3)} on average.`;
  if (role === "broad") return `${subject} looks almost everywhere: ${wide}.`;
  if (largest > 0.6) return `${subject} picks few keys: ${weight}`;
  return `${subject} looks at several keys: ${wide}; ${weight}`;
}

export function measureOf(heads: Heads, layer: number, head: number, name: string): number | null {
  return number(heads.layers[layer][head], name);
}

/** Whether a measure of some head is a lower bound. */
export const isBound = (heads: Heads, name: string) =>
  heads.layers.some((layer) => layer.some((measures) => measures.bounds.includes(name)));

/** The measures to choose axes from, with what they are. */
export function measuresOf(heads: Heads): [name: string, title: string][] {
  if (heads.state === "measuring") return Object.entries(heads.measures);
  const found = new Map(Object.entries(heads.measures));
  for (const role of heads.roles?.flat() ?? [])
    for (const name of Object.keys(role?.scores ?? {}))
      if (!found.has(name)) found.set(name, TITLES[name] ?? `${name}, score`);
  return [...found]
    .filter(([name]) =>
      heads.layers.some((layer, l) => layer.some((_, h) => measureOf(heads, l, h, name) !== null)),
    )
    .map(([name, title]) => [name, isBound(heads, name) ? `${title}, at least` : title]);
}

const TITLES: Record<string, string> = { broad: "keys looked at, as if evenly, of those allowed" };
