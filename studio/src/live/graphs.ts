// The model's graphs in ONNX Runtime: their sessions, and what a run of one gives.

import { env, InferenceSession, Tensor } from "onnxruntime-web/wasm";
import type { Card, Change } from "./card";
import { externalData, type Stored } from "./stored";
import type { LayerInputs } from "./weights";

/** Arrays by name, with their shapes. */
export type Feeds = Record<string, [data: Float32Array | BigInt64Array, shape: number[]]>;
export type Outputs = Record<string, Tensor>;

/** Token ids as a graph reads them, a batch of one text. */
export const idsTensor = (ids: number[]): Feeds[string] => [
  BigInt64Array.from(ids, BigInt),
  [1, ids.length],
];

export const numbersOf = (outputs: Outputs, name: string) => outputs[name].data as Float32Array;

export class Graphs {
  private sessions = new Map<string, InferenceSession>();
  /** The sessions of a step of the training. */
  private early: { step: number; sessions: Map<string, InferenceSession> } | null = null;

  /** piece: the bytes of a piece of the page. */
  constructor(
    private readonly card: Card,
    private readonly piece: (path: string) => ArrayBuffer | undefined,
  ) {}

  async open(wasm: ArrayBuffer): Promise<void> {
    env.wasm.wasmBinary = wasm;
    env.wasm.numThreads = 1;
    env.wasm.proxy = false;
    env.logLevel = "error";
    this.sessions = await this.made(this.stored("model"), null);
  }

  /** The numbers under a path, the parts of their bytes joined. */
  private stored(root: string): Stored {
    const parts: Int8Array[] = [];
    const one = this.piece(`${root}/bytes`);
    if (one) parts.push(new Int8Array(one));
    for (let n = 0, part; (part = this.piece(`${root}/bytes/${n}`)); n++)
      parts.push(new Int8Array(part));
    const bytes = new Int8Array(parts.reduce((sum, part) => sum + part.length, 0));
    for (let n = 0, at = 0; n < parts.length; at += parts[n].length, n++) bytes.set(parts[n], at);
    return { floats: new Float32Array(this.piece(`${root}/floats`) ?? new ArrayBuffer(0)), bytes };
  }

  private async made(trained: Stored, snapshot: Stored | null) {
    const found = new Map<string, InferenceSession>();
    for (const name of Object.keys(this.card.graphs)) {
      const graph = new Uint8Array(this.piece(`model/graphs/${name}`)!);
      const data = externalData(this.card, name, trained, snapshot);
      const options = { externalData: [{ path: "weights", data }] };
      found.set(name, await InferenceSession.create(graph, options));
    }
    return found;
  }

  private async at(step: number | undefined): Promise<Map<string, InferenceSession>> {
    if (step === undefined) return this.sessions;
    if (this.early?.step === step) return this.early.sessions;
    if (!this.card.snapshots?.steps.includes(step))
      throw new Error(`This page has no snapshot of step ${step}.`);
    for (const session of this.early?.sessions.values() ?? []) await session.release();
    this.early = null;
    const snapshot = this.stored(`model/snapshots/${step}`);
    this.early = { step, sessions: await this.made(this.stored("model"), snapshot) };
    return this.early.sessions;
  }

  /** The last size of an input. */
  depth(name: string, input: string): number {
    const { inputMetadata } = this.sessions.get(name)!;
    const known = inputMetadata.find((one) => one.name === input);
    return known?.isTensor ? Number(known.shape.at(-1)) : 0;
  }

  /** Runs a graph. fetches: the outputs that are wanted; none: all. */
  async run(name: string, feeds: Feeds, change: Change, fetches?: string[]): Promise<Outputs> {
    const session = (await this.at(change.snapshot)).get(name)!;
    const inputs: Outputs = {};
    for (const [key, [data, shape]] of Object.entries({
      ...feeds,
      gates: this.gates(name, change),
    }))
      if (session.inputNames.includes(key))
        inputs[key] =
          data instanceof Float32Array
            ? new Tensor("float32", data, shape)
            : new Tensor("int64", data, shape);
    const outputs = fetches ? await session.run(inputs, fetches) : await session.run(inputs);
    for (const input of Object.values(inputs)) input.dispose();
    return outputs as Outputs;
  }

  /** 1 for each head of a graph that is on, (layers, heads). */
  private gates(name: string, { off = [] }: Change): Feeds[string] {
    const layers = this.card.layers.filter(({ graph }) => graph === name);
    const heads = Math.max(...layers.map((layer) => layer.heads));
    const gates = new Float32Array(layers.length * heads).fill(1);
    for (const [layer, head] of off) {
      const { graph, number } = this.card.layers[layer];
      if (graph === name) gates[number * heads + head] = 0;
    }
    return [gates, [layers.length, heads]];
  }

  /** Queries, keys and values of the layers of a graph, by their numbers in the card. */
  inputs(name: string, outputs: Outputs): Map<number, LayerInputs> {
    const found = new Map<number, LayerInputs>();
    for (const [place, { graph, number, bias, heads }] of this.card.layers.entries()) {
      if (graph !== name) continue;
      const [, , rows, depth] = outputs[`queries.${number}`].dims;
      const [, , columns, valueDepth] = outputs[`values.${number}`].dims;
      found.set(place, {
        rows,
        columns,
        depth,
        valueDepth,
        queries: numbersOf(outputs, `queries.${number}`),
        keys: numbersOf(outputs, `keys.${number}`),
        values: numbersOf(outputs, `values.${number}`),
        bias: bias ? repeated(numbersOf(outputs, `bias.${number}`), heads * rows * columns) : null,
      });
    }
    return found;
  }
}

/** Numbers repeated until there are so many: one bias may be that of all heads. */
function repeated(numbers: Float32Array, count: number): Float32Array {
  if (numbers.length === count) return numbers;
  const found = new Float32Array(count);
  for (let at = 0; at < count; at += numbers.length) found.set(numbers, at);
  return found;
}
