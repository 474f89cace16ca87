// Descriptions from the server of the open traces, layers and heads; and their names.

import type { Theme } from "./colour";
import { counted, grouped, visible } from "./text";

export interface Opening {
  title: string;
  headloom: string;
  summary: [string, string][];
  examples: string[];
  /** Of each the digest of its manifest; "": it is in memory alone. */
  digests: string[];
  history: boolean;
  /** One line for each trace that could not be read. */
  damaged: string[];
  live: boolean;
  /** The name of the open model, which traces new texts; null: none. */
  asks: string | null;
  /** The model's first text; null: there are examples instead. */
  read: string | null;
  /** Digits of the numbers of an exported page. */
  digits?: number;
}

/** The rounding of an exported page's numbers; "": that of a trace. */
export const roundedWords = ({ live, digits = 7 }: Opening) =>
  live || digits >= 7 ? "" : `rounded to ${digits} digits`;

export type Kind = "encoder" | "decoder" | "cross";

/** The layers of one kind that lead from an output to an input: src/headloom/studio/flows.py. */
export interface FlowKind {
  kind: Kind;
  layers: number[];
  queries: string;
  keys: string;
  /** A note on layers that are left out. */
  note: string | null;
}

export interface LayerDescription {
  name: string;
  kind: Kind;
  index: number;
  shape: [number, number, number];
  queries: string;
  keys: string;
  mask: string | null;
  /** Whether score(i, j) = score(j, i), as the trace says. */
  symmetric?: boolean;
  deviation: number | null;
  exact?: boolean;
  /** Its small pictures: exact at once, exact after a while, or of the kept edges alone. */
  picture: "means" | "later" | "kept";
  values?: boolean;
}

export interface Description {
  name: string;
  model: Record<string, unknown>;
  sequences: Record<string, string[]>;
  /** By sequence the places of its separators. */
  separators: Record<string, number[]>;
  /** By sequence the moment of each position of a sound. */
  seconds?: Record<string, number[]>;
  /** The sequences some of whose tokens are patches of an image. */
  patches?: string[];
  deviation: number | null;
  /** Blocks along a side of the pictures of its heads, at most. */
  side: number;
  /** Whether there are the means of its layers: see src/headloom/studio/sums.py. */
  local: boolean;
  /** Through which layers a token can be followed. */
  flows: FlowKind[];
  /** Whether a model that is open read the text. */
  read?: boolean;
  /** The comparison of the trace with the model: see src/headloom/formats/verification.py. */
  verification: {
    unverified?: string;
    difference?: number;
    tokens?: number;
    whole?: boolean;
    /** Bits of the weights of a model in a page, where they are rounded. */
    bits?: number;
    texts?: number;
  } | null;
  layers: LayerDescription[];
}

export interface Layer extends LayerDescription {
  number: number;
  heads: number;
  rows: number;
  columns: number;
  queryTokens: string[];
  keyTokens: string[];
  /** The times of queries and keys in audio, in seconds; null: not audio. */
  querySeconds: number[] | null;
  keySeconds: number[] | null;
  /** The keys that end or part texts. */
  separators: number[];
  /** Whether queries and keys are the same tokens. */
  one: boolean;
}

/** The words and colours of a role: see src/headloom/analysis/heads/roles.py. */
export interface RoleWords {
  name: string;
  title: string;
  /** The end of the sentence "Each token looks ...". */
  phrase: string;
  colours: Record<Theme, string>;
}

/** The measures of one head: see `head_roles` in src/headloom/studio/collection.py. */
export interface HeadScores {
  role: string;
  scores: Record<string, number>;
  chance: Record<string, [mean: number, deviation: number]>;
}

/** The measures of every head: see `Example.heads` in src/headloom/studio/collection.py. */
export interface Heads {
  measures: Record<string, string>;
  roles: RoleWords[];
  /** By layer, how many edges a row keeps at most. */
  kept: number[];
  /** By layer and head, the mean mass of a row on no kept edge. */
  unkept: number[][];
  /** "measuring", "known", or "failed: ..." */
  state: string;
  heads: HeadScores[][] | null;
}

export const KINDS: Record<Kind, string> = {
  encoder: "Encoder",
  decoder: "Decoder",
  cross: "Cross",
};

/** The attention of a kind of layer in words: "the target looks at the source". */
export function noteOf(kind: Kind, queries: string, keys: string): string {
  const many = queries.endsWith("s") && queries.length > 1;
  if (kind === "cross") return `the ${queries} ${many ? "look" : "looks"} at the ${keys}`;
  if (kind === "encoder")
    return many ? `the ${queries} look at each other` : `the ${queries} looks at itself`;
  return many
    ? `each ${queries.replace(/(?<=ch)es$|s$/, "")} looks at those before it`
    : `the ${queries} looks back at itself`;
}

/** A layer as the command line names it: "L5 (cross 1)", and where all are of one kind "L1". */
export const layerName = (
  { several }: { several: boolean },
  layer: { kind: Kind; index: number; number: number },
) => (several ? `L${layer.number} (${layer.kind} ${layer.index})` : `L${layer.index}`);

/** A head: "L5 (cross 1) H3". */
export const headName = (
  of: { several: boolean },
  layer: { kind: Kind; index: number; number: number },
  head: number,
) => `${layerName(of, layer)} H${head}`;

/** How long a sequence is: "12 tokens", "3 source tokens", "6 patches and [CLS]". */
export function lengthWords(name: string, tokens: string[]): string {
  const others = tokens.filter((token) => !token.startsWith("patch "));
  const patches = tokens.length - others.length;
  if (patches && name.startsWith("patches")) {
    const more =
      others.length === 1 ? visible(others[0], 20) : counted(others.length, "other token");
    return `${counted(patches, "patch", "patches")}${others.length ? ` and ${more}` : ""}`;
  }
  return name.endsWith("s") && name !== "tokens"
    ? `${grouped(tokens.length)} ${name}`
    : counted(tokens.length, name === "tokens" ? "token" : `${name} token`);
}

/** A number rounded up to one digit. */
export function bound(number: number): string {
  const near = number.toExponential(0);
  if (!Number.isFinite(number) || number <= Number(near) * (1 + 1e-6)) return near;
  const [digit, power] = near.split("e");
  return Number(`${Number(digit) + 1}e${power}`).toExponential(0);
}

/** Differences from the model above this are not rounding errors. */
const FAR = 0.05;

/** The verification in words; "exact" only where every picture shows the whole matrix. */
export function verifiedWords({ verification, deviation, layers }: Description): string {
  if (verification?.unverified) return `not verified: ${visible(verification.unverified, 100)}`;
  const found = [verification?.difference, deviation].filter(
    (one): one is number => typeof one === "number",
  );
  if (!found.length) return "";
  const most = Math.max(...found);
  const number = most === 0 ? "0" : bound(most).replace("e-", "e−").replace("e+0", "");
  if (verification?.bits)
    return `${verification.bits} bits: up to ${number} off on ${verification.texts} measured texts`;
  if (!(most < FAR)) return `differs from the model by up to ${number}`;
  const whole = layers.every((layer) => layer.picture === "means");
  return `${whole ? "exact" : "kept edges only"}, matches the model to ${number}`;
}

/** Measures of the heads before the first answer. */
export const UNMEASURED: Heads = {
  measures: { distance: "mean distance, tokens", entropy: "entropy of a row, nats" },
  roles: [],
  kept: [],
  unkept: [],
  state: "measuring",
  heads: null,
};
