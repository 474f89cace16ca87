// The texts that the model read, and the pieces of their heads; the last few stay in memory.

import type { Description, Heads } from "../description";
import type { Through } from "../neuron";
import { FIRST, type Card, type Reading, type ReadWeights } from "./card";
import { edgeNumbers, throughNumbers } from "./edge";
import type { Run } from "./graphs";
import * as pieces from "./pieces";
import { layerWeights, type LayerWeights } from "./weights";

/** Texts in memory. */
const HELD = 6;
/** Weights in memory at most, 4 bytes each, besides those of the layer used last. */
const MOST_WEIGHTS = 2 ** 25;

/** What the page knows besides the card. */
export interface Words {
  names: (string | null)[];
  /** By layer the steps of a head's computation in words, and the kind of its positions. */
  steps: (Pick<Through, "steps" | "turned"> & { positions: string })[];
  /** The names and colours of measures and roles. */
  heads: Pick<Heads, "measures" | "roles">;
}

interface Held {
  description: Description;
  run: Run;
}

export class Readings {
  private count = FIRST;
  private readonly all = new Map<number, Held>();
  private readonly weights = new Map<string, LayerWeights>();

  constructor(
    private readonly card: Card,
    private readonly words: Words,
  ) {}

  /** Keeps what was read under a number of its own. */
  hold(read: Omit<Reading, "number">, run: Run): Reading {
    const number = this.count++;
    this.all.set(number, { description: read.description, run });
    for (const old of [...this.all.keys()].slice(0, -HELD)) this.drop(old);
    return { number, ...read };
  }

  /** Forgets a text. Returns: what the graph gave. */
  drop(number: number): Run | undefined {
    const run = this.all.get(number)?.run;
    this.all.delete(number);
    for (const path of this.weights.keys())
      if (!this.all.has(Number(path.split("/")[0]))) this.weights.delete(path);
    return run;
  }

  /** Bytes or JSON of an example that was read, by the rest of its path. */
  piece(number: number, path: string): unknown {
    const { description, run } = this.get(number);
    if (path === "") return description;
    if (path === "heads") return this.heads(number, description);
    const parts = path.split("/");
    const layer = Number(parts[1]);
    const rule = this.card.layers[layer];
    const inputs = run.layers.get(layer)!;
    const weights = this.weightsOf(number, layer);
    if (parts[2] === "heads") {
      const [head, , row, key] = [parts[3], parts[4], parts[5], parts[6]].map(Number);
      const at = { head, row, key };
      if (parts[4] === "edges") return pieces.edgesPiece(weights, head, row);
      if (parts[4] === "edge")
        return edgeNumbers(rule, inputs, weights, this.words.steps[layer].positions, at);
      if (parts[4] === "through")
        return throughNumbers(rule, inputs, weights, this.words.steps[layer], at);
    }
    if (parts[2] === "kept" || parts[2] === "means")
      return pieces.picturesPiece(weights, description.side);
    if (parts[2] === "sums") return pieces.sumsPiece(rule, weights, inputs);
    if (parts[2] === "mean") return pieces.meanPiece(weights, this.card.layers.length);
    if (parts[2] === "values") return pieces.valuesPiece(rule, inputs).buffer;
    throw new Error(`${path} is not in this page.`);
  }

  /** The weights of a text that was read, by layer, head, query and key. */
  arrays(number: number): ReadWeights {
    const rows = <T>(count: number, make: (n: number) => T) =>
      Array.from({ length: count }, (_, n) => make(n));
    const all = this.card.layers.map((_, layer) => this.weightsOf(number, layer));
    return {
      weights: all.map(({ weights, heads, rows: queries, columns }) =>
        rows(heads, (head) =>
          rows(queries, (row) => {
            const start = (head * queries + row) * columns;
            return weights.slice(start, start + columns);
          }),
        ),
      ),
      lse: all.map(({ lse, heads, rows: queries }) =>
        rows(heads, (head) => lse.slice(head * queries, (head + 1) * queries)),
      ),
    };
  }

  private get(number: number): Held {
    const held = this.all.get(number);
    if (!held) throw new Error("This text is no longer in memory: type it again.");
    return held;
  }

  private weightsOf(number: number, layer: number): LayerWeights {
    const path = `${number}/${layer}`;
    let found = this.weights.get(path);
    if (!found) {
      found = layerWeights(this.card.layers[layer], this.get(number).run.layers.get(layer)!);
      this.weights.set(path, found);
      let total = 0;
      for (const { weights } of this.weights.values()) total += weights.length;
      for (const [old, { weights }] of this.weights) {
        if (total <= MOST_WEIGHTS || old === path) break;
        this.weights.delete(old);
        total -= weights.length;
      }
    }
    return found;
  }

  private heads(number: number, { layers }: Description): Heads {
    const all = layers.map((_, layer) => this.weightsOf(number, layer));
    return {
      ...this.words.heads,
      kept: all.map(pieces.keptOf),
      unkept: all.map(({ heads }) => new Array<number>(heads).fill(0)),
      state: "known",
      heads: all.map((one, layer) =>
        pieces.measuresOf(one, layers[layer].queries === layers[layer].keys),
      ),
    };
  }
}
