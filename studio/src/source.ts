// The source of the numbers: a server, or the page itself, with the same paths.

import type { LiveModel } from "./live/model.svelte";
import { fromBase85, unpacked } from "./unpacked";

export interface Source {
  /** Whether it is a server, which has more than an exported page: exact tiles, for one. */
  live: boolean;
  json<T>(path: string): Promise<T>;
  bytes(path: string, stop?: AbortSignal): Promise<ArrayBuffer>;
  /** The model inside the page, where there is one. */
  model?: LiveModel;
  /** The answer to a question, from a server or a model in the page only. null: a newer question
   * replaced it. */
  ask?<T>(path: string, question: object, stop?: AbortSignal): Promise<T | null>;
}

export type Pack = Record<string, [form: string, content: unknown]>;

/** A collection that lies in memory, as src/headloom/studio/pack.py writes it. */
export function packedSource(pack: Pack): Source {
  const piece = (path: string) => {
    const found = pack[path];
    if (!found) throw new Error(`${path} is not in this page.`);
    return found;
  };
  const bytes = async (path: string) => {
    const [form, content] = piece(path);
    const packed = new Blob([fromBase85(content as string)]);
    const stream = packed.stream().pipeThrough(new DecompressionStream("deflate"));
    return unpacked(new Uint8Array(await new Response(stream).arrayBuffer()), form);
  };
  return {
    live: false,
    json: async <T>(path: string) => piece(path)[1] as T,
    bytes,
  };
}

const SILENT = "The studio's server does not answer. Is headloom view still running?";

/** A collection behind the local server. */
export function servedSource(root: string): Source {
  /** Hash of the traces at the start of the page: a server with others asks it to reload. */
  let traces: string | null = null;
  async function get<T>(
    path: string,
    read: (response: Response) => Promise<T>,
    options: RequestInit = {},
  ): Promise<T> {
    const headers = { ...options.headers, ...(traces && { "Headloom-Traces": traces }) };
    const response = await fetch(root + path, { ...options, headers }).catch((error) => {
      // fetch raises a TypeError for network errors only.
      throw error instanceof TypeError ? new Error(SILENT) : error;
    });
    traces ??= response.headers.get("Headloom-Traces");
    return read(await sound(path, response));
  }
  return {
    live: true,
    json: <T>(path: string) => get(path, (response) => response.json() as Promise<T>),
    bytes: (path, stop) => get(path, (response) => response.arrayBuffer(), { signal: stop }),
    ask: async <T>(path: string, question: object, stop?: AbortSignal) => {
      const options = {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(question),
        signal: stop,
      };
      const read = async (response: Response) =>
        response.status === 409 ? null : ((await response.json()) as T);
      try {
        return await get(path, read, options);
      } catch (error) {
        if ((error as Error).name === "AbortError") return null;
        throw error;
      }
    },
  };
}

/** The response, or an error with its message. 409: a newer question replaced this one. */
async function sound(path: string, response: Response): Promise<Response> {
  if (response.ok || response.status === 409) return response;
  const said = (await response.json().catch(() => ({}))) as { detail?: unknown };
  throw new Error(typeof said.detail === "string" ? said.detail : `${path}: ${response.status}`);
}
