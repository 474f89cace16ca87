// The model inside the page, in its worker: it reads texts, and gives the pieces of their heads.

import type { Description, Heads } from "../description";
import type { Through } from "../neuron";
import { unpacked, fromBase85 } from "../unpacked";
import {
  FIRST,
  type Card,
  type Change,
  type Input,
  type Prediction,
  type Reading,
  type ReadWeights,
} from "./card";
import { Continued } from "./continued";
import { edgeNumbers, throughNumbers } from "./edge";
import { Graphs, idsTensor, type Feeds, type Run } from "./graphs";
import * as pieces from "./pieces";
import { Tokens } from "./tokens";
import { layerWeights, type LayerInputs, type LayerWeights } from "./weights";

/** Texts in memory. */
const HELD = 6;
/** Weights in memory at most, 4 bytes each, besides those of the layer used last. */
const MOST_WEIGHTS = 2 ** 25;
/** Tokens that a translator writes at most. */
const LONGEST = 256;

/** What the page knows besides the card. */
export interface Words {
  names: (string | null)[];
  /** By layer the steps of a head's computation in words, and the kind of its positions. */
  steps: (Pick<Through, "steps" | "turned"> & { positions: string })[];
  /** The names and colours of measures and roles. */
  heads: Pick<Heads, "measures" | "roles">;
}

interface Read {
  reading: Reading;
  layers: Map<number, LayerInputs>;
  /** What the graph gave, and its last size. */
  output: Float32Array;
  columns: number;
}

/** A piece of a page, as src/headloom/studio/pack.py writes it. */
export type Packed = [form: string, content: string];

export class Engine {
  private readonly stored = new Map<string, ArrayBuffer>();
  private card!: Card;
  private words!: Words;
  private graphs!: Graphs;
  private tokens: Tokens | null = null;
  private continued!: Continued;
  private count = FIRST;
  private readonly read_ = new Map<number, Read>();
  private readonly weights = new Map<string, LayerWeights>();

  /** Takes some pieces of the page. */
  async take(packed: Record<string, Packed>): Promise<void> {
    for (const [path, [form, content]] of Object.entries(packed)) {
      const stream = new Blob([fromBase85(content)]).stream();
      const plain = stream.pipeThrough(new DecompressionStream("deflate"));
      const bytes = new Uint8Array(await new Response(plain).arrayBuffer());
      this.stored.set(path, unpacked(bytes, form));
    }
  }

  /** Makes the model ready, once all of its pieces are here. */
  async open(card: Card, words: Words): Promise<void> {
    [this.card, this.words] = [card, words];
    this.graphs = new Graphs(card, (path) => this.stored.get(path));
    this.continued = new Continued(card, this.graphs);
    if (card.tokenizer) this.tokens = new Tokens(card, words.names);
    await this.graphs.open(this.stored.get("runtime/wasm")!);
    this.stored.delete("runtime/wasm");
    // Snapshots need the other tensors again.
    if (!card.snapshots) this.stored.clear();
    await this.warm();
  }

  /** Reads a first text, so that the first that is typed finds compiled code. */
  private async warm(): Promise<void> {
    if (!this.tokens) return;
    const { number } = await this.read("a b", { target: "a b" });
    for (const layer of this.card.layers.keys()) this.piece(number, `layers/${layer}/means`);
    this.drop(number);
  }

  ids(text: string): number[] {
    return this.reader.ids(text);
  }

  async read(input: Input, change: Change = {}): Promise<Reading> {
    const { kind, layers } = this.card;
    for (const [layer, head] of change.off ?? [])
      if (!(head < layers[layer]?.heads))
        throw new Error(`There is no head ${head} in layer ${layer}.`);
    if (kind === "image") return this.readImage(input as Float32Array, change);
    if (kind === "translator") return this.translated(input as string, change);
    const ids = this.whole(input as string);
    const run =
      kind === "language"
        ? await this.continued.read(ids, change)
        : await this.graphs.run("model", { input_ids: idsTensor(ids) }, change);
    return this.held(input as string, { [this.card.sequences[0]]: ids }, run);
  }

  /** The ids that writing begins with. */
  beginning(text: string): number[] {
    return this.card.kind === "translator" ? [this.card.start!] : this.whole(text);
  }

  text(ids: number[]): string {
    return this.reader.text(ids);
  }

  /** The logits of the token after some ids: of a text, or of a text's translation. */
  async next(ids: number[], change: Change = {}, source = ""): Promise<Float32Array> {
    const { kind, name } = this.card;
    if (kind === "language")
      return (await this.continued.read(this.reader.checked(ids), change)).output.slice();
    if (kind !== "translator") throw new Error(`${name} writes no text.`);
    return this.decoded(ids, await this.encoded(this.whole(source), change), change);
  }

  /** What the model makes of a text, with the logits after each token of a translation. */
  async predicted(text: string, change: Change = {}): Promise<Prediction> {
    const { number, ids, tokens, output } = await this.read(text, change);
    const { output: logits, columns } = this.read_.get(number)!;
    this.drop(number);
    return { ids, tokens, output, logits, columns };
  }

  /** Forgets a text that was read. */
  drop(number: number): void {
    this.read_.delete(number);
    for (const path of this.weights.keys())
      if (!this.read_.has(Number(path.split("/")[0]))) this.weights.delete(path);
  }

  /** A tensor's numbers, at a step of the training where that is given. */
  tensor(name: string, step?: number): Float32Array {
    return this.graphs.tensor(name, step);
  }

  /** Bytes or JSON of an example that was read, by the rest of its path. */
  piece(number: number, path: string): unknown {
    const read = this.read_.get(number);
    if (!read) throw new Error("This text is no longer in memory: type it again.");
    const { description } = read.reading;
    if (path === "") return description;
    if (path === "heads") return this.heads(number, read);
    const parts = path.split("/");
    const layer = Number(parts[1]);
    const rule = this.card.layers[layer];
    const inputs = read.layers.get(layer)!;
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

  private get reader(): Tokens {
    if (!this.tokens) throw new Error(`${this.card.name} reads no text.`);
    return this.tokens;
  }

  /** The ids of a text with the token that stands before each. */
  private whole(text: string): number[] {
    const ids = this.reader.ids(text);
    const { kind, start } = this.card;
    const before = kind === "language" && start !== null && ids[0] !== start ? [start] : [];
    return this.reader.checked([...before, ...ids]);
  }

  private async readImage(pixels: Float32Array, change: Change): Promise<Reading> {
    const { channels, rows, columns } = this.card.image!;
    const shape = [channels, rows, columns];
    if (pixels.length !== channels * rows * columns)
      throw new Error(`An image has ${shape.join(" × ")} numbers here, not ${pixels.length}.`);
    const feeds: Feeds = { pixel_values: [pixels, [1, ...shape]] };
    return this.held("an image", {}, await this.graphs.run("model", feeds, change));
  }

  private encoded(source: number[], change: Change): Promise<Run> {
    return this.graphs.run("encoder", { input_ids: idsTensor(source) }, change);
  }

  private decoder(target: number[], encoded: Run, change: Change, only = false): Promise<Run> {
    const feeds: Feeds = {
      input_ids: idsTensor(target),
      encoder_hidden_states: [encoded.output, [...encoded.shape]],
    };
    return this.graphs.run("decoder", feeds, change, only);
  }

  /** The logits after the last of the target's ids. */
  private async decoded(target: number[], encoded: Run, change: Change): Promise<Float32Array> {
    return lastRow(await this.decoder(target, encoded, change, true));
  }

  private async translated(text: string, change: Change): Promise<Reading> {
    const { card, reader } = this;
    const source = this.whole(text);
    const encoded = await this.encoded(source, change);
    // A model that has not learnt to end would write until there is no room.
    const most = change.snapshot === undefined ? LONGEST : source.length + 8;
    const room = Math.min(card.longest ?? LONGEST, most);
    let output = change.target;
    if (output === undefined) {
      const written = [card.start!];
      while (written.length < room) {
        const next = largest(await this.decoded(written, encoded, change));
        if (next === card.end) break;
        written.push(next);
      }
      output = reader.text(written.slice(1));
    }
    const target = reader.checked([card.start!, ...reader.ids(output, true)].slice(0, room));
    const run = await this.decoder(target, encoded, change);
    const [first, second] = card.sequences;
    const ids = { [first]: source, [second]: target };
    const layers = new Map([...encoded.layers, ...run.layers]);
    return this.held(text, ids, { ...run, layers }, output);
  }

  /** Keeps what was read, the last few texts, and describes it. */
  private held(name: string, ids: Record<string, number[]>, run: Run, written?: string): Reading {
    const number = this.count++;
    const { layers } = run;
    const logits = this.card.kind === "encoder" ? new Float32Array(0) : lastRow(run);
    const output = written ?? this.output(logits);
    const description = this.description(name, ids, layers, output);
    const { sequences: tokens } = description;
    const reading = { number, description, tokens, ids, output, logits };
    this.read_.set(number, { reading, layers, output: run.output, columns: run.shape.at(-1)! });
    for (const old of [...this.read_.keys()].slice(0, -HELD)) this.drop(old);
    return reading;
  }

  private output(logits: Float32Array): string {
    const { kind, labels } = this.card;
    if (!logits.length) return "";
    const best = largest(logits);
    return kind === "language" ? this.reader.name(best) : (labels?.[best] ?? String(best));
  }

  private description(
    name: string,
    ids: Record<string, number[]>,
    layers: Map<number, LayerInputs>,
    output: string,
  ): Description {
    const { description: known, difference, kind, bits } = this.card;
    const each = <T>(make: (ids: number[]) => T) =>
      Object.fromEntries(Object.entries(ids).map(([sequence, of]) => [sequence, make(of)]));
    const wrote = kind === "language" || kind === "encoder" ? {} : { wrote: output };
    return {
      ...known,
      name,
      model: { ...known.model, ...wrote },
      sequences: { ...known.sequences, ...each((of) => this.reader.shown(of)) },
      separators: { ...known.separators, ...each((of) => this.reader.separators(of)) },
      deviation: null,
      local: true,
      read: true,
      verification: {
        difference: difference.weights,
        whole: true,
        ...(bits === 8 && { bits }),
      },
      layers: known.layers.map((layer, place) => ({
        ...layer,
        shape: [layer.shape[0], layers.get(place)!.rows, layers.get(place)!.columns],
        deviation: null,
        exact: true,
        picture: "means",
        values: true,
      })),
    };
  }

  private weightsOf(number: number, layer: number): LayerWeights {
    const path = `${number}/${layer}`;
    let found = this.weights.get(path);
    if (!found) {
      found = layerWeights(this.card.layers[layer], this.read_.get(number)!.layers.get(layer)!);
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

  private heads(number: number, { reading }: Read): Heads {
    const { layers } = reading.description;
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

/** The place of the largest number. */
function largest(numbers: Float32Array): number {
  let best = 0;
  for (let n = 1; n < numbers.length; n++) if (numbers[n] > numbers[best]) best = n;
  return best;
}

/** The last row of what a graph gave. */
const lastRow = ({ output, shape }: Run) => output.slice(output.length - shape.at(-1)!);
