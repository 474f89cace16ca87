// The model's graphs in ONNX Runtime: their sessions, and what a run of one gives.

import { env, InferenceSession, Tensor } from "onnxruntime-web/wasm";
import type { Card, Change } from "./card";
import { externalData, tensorOf, type Stored } from "./stored";
import type { LayerInputs } from "./weights";

/** Arrays by name, with their shapes. */
export type Feeds = Record<string, [data: Float32Array | BigInt64Array, shape: number[]]>;

/** What a graph gave: its own output, and the layers by their numbers in the card. */
export interface Run {
  output: Float32Array;
  shape: readonly number[];
  layers: Map<number, LayerInputs>;
}

/** Token ids as a graph reads them, a batch of one text. */
export const idsTensor = (ids: number[]): Feeds[string] => [
  BigInt64Array.from(ids, BigInt),
  [1, ids.length],
];

type Sessions = Map<string, InferenceSession>;
/** Bytes of the sessions of snapshots that stay open. */
const MOST = 2 ** 26;

export class Graphs {
  private sessions: Sessions = new Map();
  /** Those of steps of the training, by step; the last few. */
  private readonly early = new Map<number, Sessions>();

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
    for (let n = 0, part; (part = this.piece(`${root}/bytes/${n}`)); n++)
      parts.push(new Int8Array(part));
    const bytes = new Int8Array(parts.reduce((sum, part) => sum + part.length, 0));
    for (let n = 0, at = 0; n < parts.length; at += parts[n].length, n++) bytes.set(parts[n], at);
    return { floats: new Float32Array(this.piece(`${root}/floats`) ?? new ArrayBuffer(0)), bytes };
  }

  private async made(trained: Stored, snapshot: Stored | null) {
    const found: Sessions = new Map();
    for (const name of Object.keys(this.card.graphs)) {
      const graph = new Uint8Array(this.piece(`model/graphs/${name}`)!);
      const data = externalData(this.card, name, trained, snapshot);
      const options = { externalData: [{ path: "weights", data }] };
      found.set(name, await InferenceSession.create(graph, options));
    }
    return found;
  }

  private async at(step: number | undefined): Promise<Sessions> {
    if (step === undefined) return this.sessions;
    const number = this.card.snapshots?.steps.indexOf(step) ?? -1;
    if (number < 0) throw new Error(`This page has no snapshot of step ${step}.`);
    const snapshot = () => this.stored(`model/snapshots/${number}`);
    const sessions = this.early.get(step) ?? (await this.made(this.stored("model"), snapshot()));
    this.early.delete(step);
    this.early.set(step, sessions);
    const bytes = Object.values(this.card.graphs).reduce((sum, graph) => sum + graph.bytes, 0);
    for (const [old, unused] of this.early) {
      if (this.early.size <= Math.max(1, MOST / bytes)) break;
      this.early.delete(old);
      for (const session of unused.values()) await session.release();
    }
    return sessions;
  }

  /** A tensor's numbers. step: of the training, for one that its snapshots have. */
  tensor(name: string, step?: number): Float32Array {
    const { tensors, snapshots } = this.card;
    const index = tensors.findIndex((one) => one.name === name);
    const number = step === undefined ? -1 : (snapshots?.steps.indexOf(step) ?? -1);
    return number < 0
      ? tensorOf(tensors, index, this.stored("model"))
      : tensorOf(
          snapshots!.table ?? [],
          snapshots!.tensors.indexOf(index),
          this.stored(`model/snapshots/${number}`),
        );
  }

  /** The last size of an input. */
  depth(name: string, input: string): number {
    const { inputMetadata } = this.sessions.get(name)!;
    const known = inputMetadata.find((one) => one.name === input);
    return known?.isTensor ? Number(known.shape.at(-1)) : 0;
  }

  /** Runs a graph. only: its own output without the layers. */
  async run(name: string, feeds: Feeds, change: Change, only = false): Promise<Run> {
    const session = (await this.at(change.snapshot)).get(name)!;
    const all = { ...feeds, gates: this.gates(name, change) };
    const inputs: Record<string, Tensor> = {};
    for (const [key, [data, shape]] of Object.entries(all))
      inputs[key] =
        data instanceof Float32Array
          ? new Tensor("float32", data, shape)
          : new Tensor("int64", data, shape);
    const own = session.outputNames.find((one) => !/\.\d+$/.test(one))!;
    const outputs = only ? await session.run(inputs, [own]) : await session.run(inputs);
    const run = {
      output: outputs[own].data as Float32Array,
      shape: outputs[own].dims,
      layers: only ? new Map<number, LayerInputs>() : this.inputs(name, outputs),
    };
    for (const tensor of [...Object.values(inputs), ...Object.values(outputs)]) tensor.dispose();
    return run;
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

  private inputs(name: string, outputs: Record<string, Tensor>): Map<number, LayerInputs> {
    const found = new Map<number, LayerInputs>();
    const numbersOf = (output: string) => outputs[output].data as Float32Array;
    for (const [place, { graph, number, bias, heads }] of this.card.layers.entries()) {
      if (graph !== name) continue;
      const [, , rows, depth] = outputs[`queries.${number}`].dims;
      const [, , columns, valueDepth] = outputs[`values.${number}`].dims;
      found.set(place, {
        rows,
        columns,
        depth,
        valueDepth,
        queries: numbersOf(`queries.${number}`),
        keys: numbersOf(`keys.${number}`),
        values: numbersOf(`values.${number}`),
        bias: bias ? repeated(numbersOf(`bias.${number}`), heads * rows * columns) : null,
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
