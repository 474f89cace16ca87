// The model inside the page, in its worker: it reads texts, and gives the pieces of their heads.

import type { Description } from "../description";
import { fromBase85, unpacked } from "../unpacked";
import type { Card, Change, Input, Prediction, Reading, ReadWeights } from "./card";
import { Continued } from "./continued";
import { Graphs, idsTensor, type Feeds, type Run } from "./graphs";
import { Readings, type Words } from "./readings";
import { Tokens } from "./tokens";
import type { LayerInputs } from "./weights";

/** Tokens that a translator writes at most. */
const LONGEST = 256;

/** A piece of a page, as src/headloom/studio/pack.py writes it. */
export type Packed = [form: string, content: string];

export class Engine {
  private readonly stored = new Map<string, ArrayBuffer>();
  private card!: Card;
  private graphs!: Graphs;
  private tokens: Tokens | null = null;
  private continued!: Continued;
  private readings!: Readings;

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
    this.card = card;
    this.readings = new Readings(card, words);
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
    for (const layer of this.card.layers.keys())
      this.readings.piece(number, `layers/${layer}/means`);
    this.readings.drop(number);
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
    const ids = this.idsOf(input as string);
    const run =
      kind === "language"
        ? await this.continued.read(ids, change)
        : await this.graphs.run("model", { input_ids: idsTensor(ids) }, change);
    return this.held(input as string, { [this.card.sequences[0]]: ids }, run);
  }

  /** What the model makes of a text with the weights of every head; it is not kept. */
  async whole(input: Input, change: Change = {}): Promise<Reading & ReadWeights> {
    const reading = await this.read(input, change);
    const arrays = this.readings.arrays(reading.number);
    this.readings.drop(reading.number);
    return { ...reading, ...arrays };
  }

  /** The ids that writing begins with. */
  beginning(text: string): number[] {
    return this.card.kind === "translator" ? [this.card.start!] : this.idsOf(text);
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
    return this.decoded(ids, await this.encoded(this.idsOf(source), change), change);
  }

  /** What the model makes of a text, with the logits after each token of a translation. */
  async predicted(text: string, change: Change = {}): Promise<Prediction> {
    const { number, ids, tokens, output } = await this.read(text, change);
    const { output: logits, shape } = this.readings.drop(number)!;
    return { ids, tokens, output, logits, columns: shape.at(-1)! };
  }

  /** A tensor's numbers, at a step of the training where that is given. */
  tensor(name: string, step?: number): Float32Array {
    return this.graphs.tensor(name, step);
  }

  piece(number: number, path: string): unknown {
    return this.readings.piece(number, path);
  }

  drop(number: number): void {
    this.readings.drop(number);
  }

  private get reader(): Tokens {
    if (!this.tokens) throw new Error(`${this.card.name} reads no text.`);
    return this.tokens;
  }

  /** The ids of a text with the token that stands before each. */
  private idsOf(text: string): number[] {
    if (!this.reader.ids(text, true).length)
      throw new Error("The text has no tokens: type some letters.");
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
    const source = this.idsOf(text);
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

  /** Keeps what was read, and describes it. */
  private held(name: string, ids: Record<string, number[]>, run: Run, written?: string): Reading {
    const { layers } = run;
    const logits = this.card.kind === "encoder" ? new Float32Array(0) : lastRow(run);
    const output = written ?? this.output(logits);
    const description = this.description(name, ids, layers, output);
    const { sequences: tokens } = description;
    return this.readings.hold({ description, tokens, ids, output, logits }, run);
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
        bits,
        texts: difference.texts,
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
}

/** The place of the largest number. */
function largest(numbers: Float32Array): number {
  let best = 0;
  for (let n = 1; n < numbers.length; n++) if (numbers[n] > numbers[best]) best = n;
  return best;
}

/** The last row of what a graph gave. */
const lastRow = ({ output, shape }: Run) => output.slice(output.length - shape.at(-1)!);
