// The source of a page with a model: the pieces that it has, and those of the texts that it reads.

import type { Heads, Opening } from "../description";
import { packedSource, type Pack, type Source } from "../source";
import { FIRST, type Card, type Input } from "./card";
import type { Packed } from "./engine";
import type { Words } from "./readings";
import { LiveModel } from "./model.svelte";
import { partsOf } from "./parts";

/** The place of a path below a text that was read; null: it is a piece of the page. */
function readPath(path: string): [number: number, rest: string] | null {
  const [, number, rest = ""] = /^examples\/(\d+)(?:\/(.*))?$/.exec(path) ?? [];
  return Number(number) >= FIRST ? [Number(number), rest] : null;
}

/** A page's pack with a model. */
export function liveSource(pack: Pack): Source {
  const json = <T>(path: string) => pack[path]?.[1] as T;
  const card = json<Card>("model");
  const words: Words = {
    names: json("model/names"),
    steps: json("model/steps"),
    heads: json<Heads>("examples/0/heads"),
  };
  const stored = Object.keys(pack).filter(
    (path) => /^(model|runtime)\//.test(path) && pack[path][0],
  );
  const parts = json<number | undefined>("runtime/parts");
  const groups = parts ? partsOf(parts) : taken(pack, stored);
  const model = new LiveModel(card, words, json("runtime/worker"), groups, parts ?? stored.length);
  const packed = packedSource(pack);
  return {
    live: false,
    model,
    json: async <T>(path: string) => {
      const read = readPath(path);
      if (read) return model.piece<T>(...read);
      const piece = await packed.json<T>(path);
      const asks = card.tokenizer ? card.name : null;
      return path === "open" ? { ...(piece as Opening & T), asks } : piece;
    },
    bytes: (path) => {
      const read = readPath(path);
      return read ? model.piece<ArrayBuffer>(...read) : packed.bytes(path);
    },
    ask: async <T>(_: string, question: object) => {
      try {
        const reading = await model.ask((question as { text: Input }).text);
        return reading && ({ example: reading.number, description: reading.description } as T);
      } catch (error) {
        return { problem: (error as Error).message } as T;
      }
    },
  };
}

/** Pieces of a pack, one after the other; those that were handed over leave it. */
async function* taken(pack: Pack, paths: string[]): AsyncGenerator<Record<string, Packed>> {
  for (const path of paths) {
    const piece = pack[path] as Packed;
    Reflect.deleteProperty(pack, path);
    yield { [path]: piece };
  }
}
