// Whether the server that a page came from is there. A server is ended and started again while
// pages are open: they then wait, look for it, and go on by themselves.

/** there; lost: nobody answers; other: one answers that has other traces. */
export type Contact = "there" | "lost" | "other";

/** Milliseconds between two looks for a server. */
export const LOOK = 2000;
/** Milliseconds after which a look is given up: nothing listens any more, or it does not answer. */
const PATIENCE = 5000;
/** How often a request is tried whose answer breaks off though a server is there. */
const TRIES = 3;

export const SILENT = "The studio's server does not answer. Is headloom view still running?";
export const OTHER = "headloom view was started again, with other traces. Reload the page.";

/** What asks a server, and waits for it where it is away. */
export class Connection {
  contact: Contact = $state("there");
  /** Called each time the server is there again. */
  returned: () => void = () => {};
  /** Which traces the server had when the page was opened. */
  private traces: string | null = null;
  private waiting: (() => void)[] = [];
  private looking = false;
  /** How often the server went away and came back. */
  private returns = 0;
  /** Ends the pause before the next look. */
  private wake: () => void = () => {};

  constructor(private readonly root: string) {
    // Pages in the background look but once a minute: whoever comes back to one does not wait.
    globalThis.document?.addEventListener("visibilitychange", () => this.wake());
    globalThis.window?.addEventListener("online", () => this.wake());
  }

  /** What an answer holds, as `read` reads it. While the server is away it waits, and then asks
   * again. */
  async ask<T>(
    path: string,
    read: (response: Response) => Promise<T>,
    options: RequestInit = {},
  ): Promise<T> {
    for (let tried = 0, returns = -1; ;) {
      await this.there(options.signal);
      // Of a server that was ended meanwhile it is no fault.
      tried = this.returns === returns ? tried + 1 : 1;
      returns = this.returns;
      const answer = await this.answer(path, read, options);
      if (answer) return answer.content;
      void this.look();
      if (tried === TRIES) throw new Error(`The studio's server breaks off its answer to ${path}.`);
    }
  }

  /** null: none came, or that of a server with other traces. */
  private async answer<T>(
    path: string,
    read: (response: Response) => Promise<T>,
    options: RequestInit,
  ): Promise<{ content: T } | null> {
    try {
      // A server with other traces does nothing of what is meant for these.
      const headers = {
        ...options.headers,
        ...(this.traces && { "Headloom-Traces": this.traces }),
      };
      const response = await fetch(this.root + path, { ...options, headers });
      const served = response.headers.get("Headloom-Traces");
      this.traces ??= served;
      if (served !== this.traces) return null;
      return { content: await read(response) };
    } catch (error) {
      // That is what fetch says of a network: of anything else it is an error of another kind.
      if (error instanceof TypeError) return null;
      throw error;
    }
  }

  /** Resolves where a server is there. Raises: AbortError: the request was called off. */
  private async there(signal?: AbortSignal | null): Promise<void> {
    while (this.looking)
      await new Promise<void>((done, failed) => {
        signal?.throwIfAborted();
        signal?.addEventListener("abort", () => failed(signal.reason), { once: true });
        this.waiting.push(done);
      });
  }

  /** Looks for the server until it is there, whoever waits for it. */
  private async look(): Promise<void> {
    if (this.looking) return;
    this.looking = true;
    for (let pause = 0; ; pause = LOOK) {
      await new Promise<void>((done) => {
        this.wake = done;
        setTimeout(done, pause);
      });
      const found = await this.found();
      if (found === "there") break;
      this.contact = found;
    }
    const away = this.contact !== "there";
    this.contact = "there";
    this.looking = false;
    if (away) this.returns++;
    for (const go of this.waiting.splice(0)) go();
    if (away) this.returned();
  }

  private async found(): Promise<Contact> {
    try {
      const signal = AbortSignal.timeout(PATIENCE);
      const { headers } = await fetch(`${this.root}open`, { signal, cache: "no-store" });
      const served = headers.get("Headloom-Traces");
      // Another program may have the port by now.
      if (served === null && this.traces !== null) return "lost";
      this.traces ??= served;
      return served === this.traces ? "there" : "other";
    } catch {
      return "lost";
    }
  }
}
