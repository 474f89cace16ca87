// A language model on a text of which it has read the beginning: keys and values are kept, only the
// new tokens run.

import type { Card, Change } from "./card";
import { idsTensor, type Feeds, type Graphs, type Run } from "./graphs";
import type { LayerInputs } from "./weights";

export class Continued {
  private ids: number[] = [];
  private change = "";
  private layers = new Map<number, LayerInputs>();

  constructor(
    private readonly card: Card,
    private readonly graphs: Graphs,
  ) {}

  /** The run on a whole text: its logits are those of the token after it. */
  async read(ids: number[], change: Change): Promise<Run> {
    const same = JSON.stringify([change.off ?? [], change.snapshot]);
    let past = 0;
    // A bias of a past row is not known for later keys.
    if (same === this.change && !this.card.layers.some(({ bias }) => bias))
      while (past < ids.length - 1 && past < this.ids.length && ids[past] === this.ids[past])
        past++;
    const feeds: Feeds = { input_ids: idsTensor(ids.slice(past)) };
    for (const [place, { kvHeads, number }] of this.card.layers.entries()) {
      const layer = this.layers.get(place);
      for (const name of ["keys", "values"] as const) {
        const input = `past_${name}.${number}`;
        const before = layer ? cut(layer[name], kvHeads, layer.columns, past) : new Float32Array(0);
        feeds[input] = [before, [1, kvHeads, past, this.graphs.depth("model", input)]];
      }
    }
    const run = await this.graphs.run("model", feeds, change);
    for (const [place, layer] of past ? run.layers : []) {
      const { heads } = this.card.layers[place];
      const { queries, rows } = this.layers.get(place)!;
      layer.queries = joined(cut(queries, heads, rows, past), layer.queries, heads);
      layer.rows = ids.length;
    }
    [this.ids, this.change, this.layers] = [ids, same, run.layers];
    return run;
  }
}

/** The first rows of each head of (heads, all, depth). */
function cut(numbers: Float32Array, heads: number, all: number, rows: number): Float32Array {
  const depth = numbers.length / (heads * all);
  const found = new Float32Array(heads * rows * depth);
  for (let head = 0; head < heads; head++) {
    const start = head * all * depth;
    found.set(numbers.subarray(start, start + rows * depth), head * rows * depth);
  }
  return found;
}

/** The rows of each head, one array's before the other's. */
function joined(first: Float32Array, second: Float32Array, heads: number): Float32Array {
  const found = new Float32Array(first.length + second.length);
  const [one, other] = [first.length / heads, second.length / heads];
  for (let head = 0; head < heads; head++) {
    found.set(first.subarray(head * one, (head + 1) * one), head * (one + other));
    found.set(second.subarray(head * other, (head + 1) * other), head * (one + other) + one);
  }
  return found;
}
