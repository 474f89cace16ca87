// The state that a link holds. Every view is a function of this and of the data.

import { visible } from "./text";

export const START = {
  view: "heads",
  /** The name of an example; in old links its number; empty: the first. */
  example: "",
  /** The first digits of the SHA-256 of its manifest. */
  trace: "",
  /** The name of the example that it is compared with; empty: the next. */
  other: "",
  /** A text that the model is to read, where one is open; empty: an example. */
  text: "",
  /** The heads of the model in the page that are switched off, as 2.1-3.0. */
  off: "",
  /** The step of the guide. */
  guide: 0,
  layer: 0,
  head: 0,
  /** The heads drawn as threads, with a dot between them; empty: the current one. */
  heads: "",
  query: -1,
  key: -1,
  lock: false,
  /** Whether sinks are hidden: the first token and separators. */
  sinks: false,
  /** Whether weights are multiplied by the norm of their values. */
  values: false,
  of: "weights" as "weights" | "scores",
  share: 0.9,
  /** Of a graph: the mean of the heads, how much of the mass is drawn, how its tokens stand. */
  mean: false,
  mass: 0.7,
  /** Whether the map of an image is of the head that is chosen, not of the mean of the layer's; and
   * which image of a text it is of. */
  one: false,
  image: 0,
  layout: "" as "" | "circle" | "line",
  /** Of paths: the kind of layers, the output, the input, and which of the strongest is alone. */
  kind: "" as "" | "encoder" | "decoder" | "cross",
  output: -1,
  input: -1,
  path: -1,
  scale: "root" as "root" | "linear" | "log",
  /** The value of a block of cells when the matrix is zoomed out. */
  blocks: "max" as "max" | "mass",
  order: "layer" as "layer" | "role" | "entropy",
  colour: "role" as "role" | "entropy",
  x: "distance",
  y: "entropy",
  /** The window of the matrix: first row, first column, rows seen; empty: the whole. */
  window: "",
  step: 0,
  picture: "attention" as "attention" | "product",
  theme: "" as "" | "light" | "dark",
};

export type State = typeof START;

const CHOICES: Partial<Record<keyof State, readonly string[]>> = {
  of: ["weights", "scores"],
  layout: ["", "circle", "line"],
  kind: ["", "encoder", "decoder", "cross"],
  scale: ["root", "linear", "log"],
  blocks: ["max", "mass"],
  order: ["layer", "role", "entropy"],
  colour: ["role", "entropy"],
  picture: ["attention", "product"],
  theme: ["", "light", "dark"],
};

/** Numbers above 0, at most 1. */
const SHARES = new Set(["share", "mass"]);
const LONGEST = 400,
  LONGEST_TEXT = 2000;

/** Reads a link. Unknown names are ignored; invalid values keep their default and are reported.
 *
 * views: their names. */
export function parse(
  hash: string,
  views: readonly string[],
): { state: State; problems: string[] } {
  const state: Record<string, unknown> = { ...START };
  const problems: string[] = [];
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!Object.hasOwn(START, name)) continue;
    const start = START[name as keyof State];
    const choices = name === "view" ? views : CHOICES[name as keyof State];
    if (typeof start === "number") {
      const number = text.trim() === "" ? NaN : Number(text);
      if (
        Number.isFinite(number) &&
        (SHARES.has(name) ? number > 0 && number <= 1 : Number.isSafeInteger(number))
      )
        state[name] = number;
      else {
        const expected = SHARES.has(name) ? "a share above 0, at most 1" : "a whole number";
        problems.push(`The link has ${name}=${visible(text, 30)}; expected ${expected}.`);
      }
    } else if (typeof start === "boolean") state[name] = text === "1";
    else if (!choices || choices.includes(text))
      state[name] = text.slice(0, name === "text" ? LONGEST_TEXT : LONGEST);
    else {
      const known = choices.filter(Boolean).join(", ");
      problems.push(`The link has ${name}=${visible(text, 30)}; expected one of ${known}.`);
    }
  }
  return { state: state as State, problems };
}

/** The link to a state: what differs from the start, and always the view. */
export function format(state: State): string {
  const link = new URLSearchParams();
  for (const name of Object.keys(START) as (keyof State)[])
    if (name === "view" || state[name] !== START[name])
      link.set(
        name,
        typeof state[name] === "boolean" ? (state[name] ? "1" : "0") : String(state[name]),
      );
  return `#${link}`;
}
