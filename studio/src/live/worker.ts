// The worker of a page with a model: one call after the other.

import { Engine } from "./engine";

const engine = new Engine();
const methods = engine as unknown as Record<string, (...args: unknown[]) => unknown>;
let before: Promise<unknown> = Promise.resolve();

interface Call {
  id: number;
  method: string;
  args: unknown[];
}

self.onmessage = ({ data: { id, method, args } }: MessageEvent<Call>) => {
  before = before.then(async () => {
    try {
      const value = await methods[method](...args);
      postMessage({ id, value }, { transfer: value instanceof ArrayBuffer ? [value] : [] });
    } catch (error) {
      postMessage({ id, problem: (error as Error).message });
    }
  });
};
