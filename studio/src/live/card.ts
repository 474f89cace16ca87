// What a page knows of the model inside it, as src/headloom/api/page_model.py writes it.

import type { Description, Kind } from "../description";

/** The number of the first text that is read, above those of all examples. */
export const FIRST = 100_000_000;

/** A layer: how its weights come from queries and keys. */
export interface CardLayer {
  name: string;
  kind: Kind;
  heads: number;
  kvHeads: number;
  scale: number;
  causal: boolean;
  /** Keys that a query sees at most, itself among them. */
  window: number | null;
  /** Scores stay between minus and plus this. */
  softcap: number | null;
  /** By head the logit of its sink. */
  sinks: number[] | null;
  /** Whether the graph adds a number to each score. */
  bias: boolean;
  /** The graph that it is in, and its number among that graph's outputs. */
  graph: string;
  number: number;
}

export type Tensors = { name: string; count: number; rows: number; bits: 8 | 32 }[];

export interface Card {
  /** encoder: it has hidden states only. */
  kind: "translator" | "language" | "classifier" | "image" | "encoder";
  name: string;
  parameters: number;
  /** How its large matrices are stored. */
  bits: 8 | 32;
  /** The largest difference from headloom, measured at the export. */
  difference: { weights: number; output: number; texts: number };
  /** Tokens of a text at most. */
  longest: number | null;
  start: number | null;
  end: number | null;
  /** Tokens that are never written. */
  never?: number[];
  /** Tokens that are no text, where the tokenizer does not say so. */
  special?: number[];
  /** tokenizer.json of Hugging Face. */
  tokenizer: object | null;
  labels: string[] | null;
  image: { channels: number; rows: number; columns: number } | null;
  sequences: string[];
  /** The description of a traced text, with its shapes and tokens. */
  description: Description;
  layers: CardLayer[];
  /** 8 bits: each number is the scale of its row times a whole number. */
  tensors: Tensors;
  graphs: Record<string, { tensors: [index: number, offset: number][]; bytes: number }>;
  /** Steps of the training, and the tensors of which each has its own. table: how a
   * step stores these. */
  snapshots: { steps: number[]; tensors: number[]; table: Tensors } | null;
}

/** A change of the model for one reading. */
export interface Change {
  /** Heads whose outputs are 0. */
  off?: readonly (readonly [layer: number, head: number])[];
  /** A step of the training, from the card's snapshots; none: the trained model. */
  snapshot?: number;
  /** A translator's target; none: it writes one itself. */
  target?: string;
}

/** A text, or an image's numbers from 0 to 1, (channels, rows, columns). */
export type Input = string | Float32Array;

/** What the model made of a text. */
export interface Reading {
  /** Of its example: the pieces of its heads are under examples/{number}. */
  number: number;
  description: Description;
  /** By sequence. */
  tokens: Record<string, string[]>;
  ids: Record<string, number[]>;
  /** The translation, the label, or the next token; "": an encoder has none. */
  output: string;
  /** Of the next token, or of the classes; of an encoder none. */
  logits: Float32Array;
}

/** What the model made of a text without its heads. */
export interface Prediction extends Pick<Reading, "ids" | "tokens" | "output"> {
  /** Rows of numbers: of a translation after each of its tokens, else of the end alone. */
  logits: Float32Array;
  columns: number;
}

/** The weights of a layer by head, query and key, as headloom.read gives them. */
export interface ReadWeights {
  weights: Float32Array[][][];
  lse: Float64Array[][];
}
