// Where the numbers come from: the server beside the page, or the page itself. Both know the
// same paths.

import { fromBase85, unpacked } from "./unpacked";

export interface Source {
  /** Whether it answers what an exported page does not hold: exact tiles, roles later. */
  live: boolean;
  json<T>(path: string): Promise<T>;
  bytes(path: string, stop?: AbortSignal): Promise<ArrayBuffer>;
  /** The answer to a question; a server's alone. null: it was overtaken by a newer one. What the
   * answer holds besides JSON is its `bytes`. */
  ask?<T>(path: string, question: object, stop?: AbortSignal): Promise<T | null>;
  /** What there is of a piece that takes long, and whether that is all. */
  soFar(path: string): Promise<{ bytes: ArrayBuffer; whole: boolean }>;
}

export type Pack = Record<string, [form: string, content: unknown]>;

/** A collection that lies in memory, as src/weft/studio/pack.py writes it. */
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
    soFar: async (path) => ({ bytes: await bytes(path), whole: true }),
  };
}

/** JSON that bytes come with: its length, itself, and these. */
export function withBytes(answer: ArrayBuffer): object {
  const end = 4 + new DataView(answer).getUint32(0, true);
  const described = JSON.parse(new TextDecoder().decode(new Uint8Array(answer, 4, end - 4)));
  return { ...described, bytes: answer.slice(end) };
}

/** A collection behind the local server. */
export function servedSource(root: string): Source {
  /** Which traces the server had when the page was opened. */
  let traces: string | null = null;
  const get = async (path: string, options?: RequestInit) => {
    let response: Response;
    try {
      response = await fetch(root + path, options);
    } catch (error) {
      if ((error as Error).name === "AbortError") throw error;
      throw new Error("The studio's server does not answer. Is weft view still running?", {
        cause: error,
      });
    }
    const served = response.headers.get("Weft-Traces");
    traces ??= served;
    if (served !== traces)
      throw new Error("weft view was started again, with other traces. Reload the page.");
    if (!response.ok && !(options?.method && response.status === 409)) {
      const said = await response.json().catch(() => ({}));
      throw new Error(
        typeof said.detail === "string" ? said.detail : `${path}: ${response.status}`,
      );
    }
    return response;
  };
  return {
    live: true,
    json: async <T>(path: string) => (await get(path)).json() as Promise<T>,
    bytes: async (path, stop) => (await get(path, { signal: stop })).arrayBuffer(),
    ask: async <T>(path: string, question: object, stop?: AbortSignal) => {
      try {
        const response = await get(path, {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(question),
          signal: stop,
        });
        if (response.status === 409) return null;
        const binary = response.headers.get("Content-Type") === "application/octet-stream";
        return (binary ? withBytes(await response.arrayBuffer()) : await response.json()) as T;
      } catch (error) {
        if ((error as Error).name === "AbortError") return null;
        throw error;
      }
    },
    soFar: async (path) => {
      const response = await get(path);
      return { bytes: await response.arrayBuffer(), whole: response.status !== 202 };
    },
  };
}
