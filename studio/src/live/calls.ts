// Calls of the worker's methods, each answered by a promise.

import { trustedUrl } from "./trusted";

interface Answer {
  id: number;
  value?: unknown;
  problem?: string;
}

export class Calls {
  private readonly worker: Worker;
  private readonly waiting = new Map<
    number,
    { done: (value: never) => void; failed: (error: Error) => void }
  >();
  private count = 0;
  /** What calls wait for. */
  after: Promise<unknown> = Promise.resolve();

  /** code: of the worker, a script. */
  constructor(code: string) {
    const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    this.worker = new Worker(trustedUrl(url));
    this.worker.onmessage = ({ data: { id, value, problem } }: MessageEvent<Answer>) => {
      const { done, failed } = this.waiting.get(id)!;
      this.waiting.delete(id);
      if (problem === undefined) done(value as never);
      else failed(new Error(problem));
    };
    this.worker.onerror = (event) => {
      const error = new Error(`The model stopped: ${event.message || "its worker cannot start"}.`);
      for (const { failed } of this.waiting.values()) failed(error);
      this.waiting.clear();
      this.after = Promise.reject(error);
      this.after.catch(() => {}); // each call says it
    };
  }

  /** Calls a method once the model is ready. */
  async call<T>(method: string, ...args: unknown[]): Promise<T> {
    await this.after;
    return this.make<T>(method, ...args);
  }

  /** Calls a method at once. */
  make<T>(method: string, ...args: unknown[]): Promise<T> {
    return new Promise<T>((done, failed) => {
      const id = this.count++;
      this.waiting.set(id, { done, failed });
      this.worker.postMessage({ id, method, args });
    });
  }

  close(): void {
    this.worker.terminate();
  }
}
