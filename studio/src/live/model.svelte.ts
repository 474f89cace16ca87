// The model inside a page: it reads texts, writes them, and gives the pieces of their heads. All
// work is done in a worker.

import { Calls } from "./calls";
import type { Card, Change, Input, Prediction, Reading, ReadWeights } from "./card";
import type { Packed } from "./engine";
import type { Words } from "./readings";
import { percent } from "../text";
import { sampled, type Sampling } from "./sampling";

export interface Writing extends Sampling, Change {
  /** Tokens to write at most. */
  tokens?: number;
  signal?: AbortSignal;
}

/** A token that was written. */
export interface Written {
  id: number;
  token: string;
  /** The text so far, without the beginning. */
  text: string;
  /** The logits that it was chosen from. */
  logits: Float32Array;
}

export class LiveModel {
  /** What the model does while it is not ready, and why it cannot be; "": it is ready. */
  state = $state("Opening the model …");
  /** How the model is changed for the studio: heads that are off, and the step of the training. */
  change: Change = $state.raw({});
  /** Done when the model can read. */
  readonly ready: Promise<void>;
  private readonly calls: Calls;
  private reading: Promise<unknown> | null = null;
  private waiting: ((wanted: boolean) => void) | null = null;

  /**
   * code: of the worker. pieces: the stored numbers and graphs, in groups, as they arrive.
   * groups: how many there are.
   */
  constructor(
    readonly card: Card,
    private readonly words: Words,
    code: string,
    pieces: AsyncIterable<Record<string, Packed>>,
    groups: number,
  ) {
    this.calls = new Calls(code);
    this.ready = this.opened(pieces, groups);
    this.calls.after = this.ready;
    this.ready.catch((error) => (this.state = `The model cannot start: ${error.message}`));
  }

  private async opened(pieces: AsyncIterable<Record<string, Packed>>, groups: number) {
    let count = 0;
    for await (const some of pieces) {
      await this.calls.make("take", some);
      this.state = `Opening the model: ${percent(++count / (groups + 1))} …`;
    }
    await this.calls.make("open", this.card, this.words);
    this.state = "";
  }

  /** Reads a text or an image. */
  read(input: Input, change: Change = this.change): Promise<Reading> {
    return this.calls.call("read", input, change);
  }

  /** What the model makes of a text; its heads are not kept. */
  predicted(text: string, change: Change): Promise<Prediction> {
    return this.calls.call("predicted", text, change);
  }

  /** A tensor's numbers, at a step of the training where that is given. */
  tensor(name: string, step?: number): Promise<Float32Array> {
    return this.calls.call("tensor", name, step);
  }

  /** Reads the text that is typed, or the image that is drawn. null: a newer one came meanwhile. */
  async ask(text: Input): Promise<Reading | null> {
    this.waiting?.(false);
    this.waiting = null;
    if (this.reading) {
      const wanted = await new Promise<boolean>((done) => (this.waiting = done));
      if (!wanted) return null;
    }
    const reading = this.read(text);
    const next = () => {
      this.reading = null;
      this.waiting?.(true);
      this.waiting = null;
    };
    this.reading = reading.then(next, next);
    return reading;
  }

  /** A piece of a text that was read, by the rest of its path. */
  piece<T>(number: number, path: string): Promise<T> {
    return this.calls.call<T>("piece", number, path);
  }

  /** Reads a text with the weights of every head; the studio does not keep it. */
  whole(input: Input, change: Change = this.change): Promise<Reading & ReadWeights> {
    return this.calls.call("whole", input, change);
  }

  /** Forgets a text that was read. */
  drop(number: number): Promise<void> {
    return this.calls.call("drop", number);
  }

  ids(text: string): Promise<number[]> {
    return this.calls.call("ids", text);
  }

  /** The names of all tokens. */
  get names(): Words["names"] {
    return this.words.names;
  }

  name(id: number): string {
    return this.words.names[id] ?? `‹${id}›`;
  }

  /** The logits of the token after some ids; of a translator, ids of the target. */
  next(ids: number[], change: Change = this.change, source = ""): Promise<Float32Array> {
    return this.calls.call("next", ids, change, source);
  }

  /** Writes after a text, or a translation of it; calls back with each token. */
  async generate(
    text: string,
    { tokens = 40, signal, temperature = 0, topK, seed = 1, ...change }: Writing = {},
    visit: (written: Written) => void = () => {},
  ): Promise<string> {
    const { kind, start, end, never = [], longest } = this.card;
    const translates = kind === "translator";
    const ids = await this.calls.call<number[]>("beginning", text);
    const from = ids.length;
    const random = sampled({ temperature, topK, seed });
    let written = "";
    const most = Math.min(from + tokens, longest ?? Infinity);
    while (ids.length < most && !signal?.aborted) {
      const logits = await this.next(ids, { ...this.change, ...change }, translates ? text : "");
      for (const id of never) logits[id] = -Infinity;
      const id = random(logits);
      if (id === end || id === start) break;
      ids.push(id);
      written = await this.calls.call<string>("text", ids.slice(from));
      visit({ id, token: this.name(id), text: written, logits });
    }
    return written;
  }

  close(): void {
    this.calls.close();
  }
}
