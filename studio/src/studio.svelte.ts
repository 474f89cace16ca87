// State shared by all views: the collection, the address, the theme, and the last announcement.

import { Address } from "./address.svelte";
import type { Theme } from "./colour";
import type { State } from "./link";
import { layerName, type Description, type Heads, type Layer, type Opening } from "./description";
import { Example } from "./model";
import type { Source } from "./source";
import { grouped, visible } from "./text";
import { Training } from "./training";

/** The text above a figure of a view. */
export interface Caption {
  title: string;
  note?: string;
  /** The content, for the file's name; default: the selected head. */
  of?: string;
}

/** The name of a run's probe, as in src/headloom/studio/runs.py. */
const PROBE = "the probe";

export class Studio {
  readonly address: Address;
  opening: Opening | null = $state.raw(null);
  example: Example | null = $state.raw(null);
  heads: Heads | null = $state.raw(null);
  training: Training | null = $state.raw(null);
  problem = $state("");
  /** The name of an example in a link that is not open. */
  missing: string | null = $state(null);
  /** Whether the user chose the example, not a link. */
  private chose = false;
  announcement = $state("");
  /** The place that the studio has, in pixels: a window, or a notebook's cell. */
  width = $state(1440);
  system: Theme = $state("light");
  /** Whether the system chooses the colours; then it also chooses between light and dark. */
  forced = $state(false);
  /** Moves the focus to the picture when the focused element is gone. */
  keepFocus: () => void = () => {};
  /** The key handler of a view; true: it used the key. */
  keys: ((event: KeyboardEvent) => boolean) | null = null;
  /** The caption of a view's figure. Raises: Error: there is nothing to export. */
  figure: (() => Caption) | null = null;
  /** The colours of a figure, while one is drawn. */
  asFigure: Theme | null = $state(null);

  constructor(
    readonly source: Source,
    readonly linked: boolean,
    start: string,
    views: readonly string[],
  ) {
    this.address = new Address(linked, start, views);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.system = dark.matches ? "dark" : "light";
    dark.addEventListener("change", () => (this.system = dark.matches ? "dark" : "light"));
    const forced = window.matchMedia("(forced-colors: active)");
    this.forced = forced.matches;
    forced.addEventListener("change", () => (this.forced = forced.matches));
  }

  get state(): State {
    return this.address.state;
  }

  get theme(): Theme {
    return this.asFigure ?? ((!this.forced && this.state.theme) || this.system);
  }

  /** The layer that is chosen, within what the trace has. */
  get layer(): Layer {
    const { layers } = this.example!;
    return layers[clamp(this.state.layer, layers.length)];
  }

  get head(): number {
    return clamp(this.state.head, this.layer.heads);
  }

  /** Text beside the example's name: the step of a run's probe, or a model's output. */
  get besideName(): string {
    const wrote = this.example?.description.model.wrote;
    if (typeof wrote === "string") return `→ ${visible(wrote, 60)}`;
    const { steps, state } = this.training?.description ?? {};
    if (this.example?.description.name !== PROBE || !steps?.length) return "";
    const so = state === "training" ? " so far" : "";
    return `after step ${grouped(steps[steps.length - 1])} (last snapshot${so})`;
  }

  /** The heads drawn as threads. */
  get chosen(): number[] {
    const { heads } = this.layer;
    const found = this.state.heads
      .split(".")
      .filter((text) => text !== "")
      .map(Number)
      .filter((head) => Number.isInteger(head) && head >= 0 && head < heads);
    return found.length ? [...new Set(found)] : [this.head];
  }

  go(view: string): void {
    if (view !== this.state.view) this.address.set({ view }, true);
  }

  set(change: Partial<State>): void {
    this.address.set(change);
  }

  /** Selects a head; the selected token stays where the other layer has the same tokens. */
  select(layer: number, head: number): void {
    const from = this.layer,
      to = this.example!.layers[layer];
    const { query, key, lock, window } = this.state;
    const [queries, keys] = [to.queries === from.queries, to.keys === from.keys];
    const place = { query: queries ? query : -1, key: keys ? key : -1 };
    this.set({
      layer,
      head,
      heads: "",
      ...place,
      lock: lock && (place.query >= 0 || place.key >= 0),
      window: queries && keys ? window : "",
    });
  }

  async open(): Promise<void> {
    try {
      this.opening = await this.source.json<Opening>("open");
      if (this.opening.history && !this.training)
        Training.load(this.source).then(
          (training) => (this.training = training),
          (error) => (this.problem = String(error.message ?? error)),
        );
    } catch (error) {
      this.problem = (error as Error).message;
    }
  }

  /** Reports that the data of the view cannot be loaded. */
  readonly failed = (error: Error): void => {
    this.problem = error.message;
  };

  /** Tries again what failed. */
  async again(): Promise<void> {
    this.problem = "";
    if (this.read) return this.ask(this.read);
    await this.open();
    if (this.opening) await this.load(this.state.example);
  }

  /** The number of an example by the digest of its manifest, by its name, or in old links by its
   * number; null: not found. */
  private find(name: string): number | null {
    const { examples: names, digests } = this.opening!;
    const { trace } = this.state;
    const place = name === "" ? 0 : names.indexOf(name);
    // Two may hold the same: then the name tells them apart.
    if (trace && digests[place] !== trace && digests.includes(trace)) return digests.indexOf(trace);
    if (place >= 0) return place;
    return /^\d{1,9}$/.test(name) && Number(name) < names.length ? Number(name) : null;
  }

  /** The problem with the typed text; "": none. */
  askProblem = $state("");
  /** Whether a text is being read. */
  reading = $state(false);
  /** The text that is shown, where the model read one. */
  read = "";
  private turn = 0;
  private asked = new AbortController();
  private readonly window = crypto.randomUUID?.() ?? String(Math.random());

  /** Traces a text, or an image, with the model and shows it; earlier requests are cancelled. */
  async ask(text: string, image?: Float32Array): Promise<void> {
    this.asked.abort();
    const { signal } = (this.asked = new AbortController());
    this.askProblem = "";
    if (!this.source.ask) return;
    if (!image && !text.trim()) {
      this.closeText();
      return;
    }
    this.reading = true;
    try {
      const found = await this.source.ask<
        { problem: string } | { problem?: undefined; example: number; description: Description }
      >("ask", { text: image ?? text, window: this.window, turn: ++this.turn }, signal);
      if (!found || signal.aborted) return;
      if (found.problem !== undefined) {
        this.askProblem = found.problem;
        return;
      }
      this.missing = null;
      this.problem = "";
      this.heads = null;
      const example = new Example(this.source, found.example, found.description);
      this.example = example;
      this.read = text;
      this.reading = false;
      // Keep the selection where the text is that of the link.
      if (image) this.settle();
      else if (text !== this.state.text)
        this.set({ text, query: -1, key: -1, lock: false, window: "" });
      this.announcement = `${example.layers[0]?.rows ?? 0} tokens traced.`;
      // While the user types, do not wait for the measures.
      await new Promise((done) => setTimeout(done, 500));
      if (!signal.aborted) await this.measure(example);
    } catch (error) {
      if (!signal.aborted) this.askProblem = (error as Error).message;
    } finally {
      if (!signal.aborted) this.reading = false;
    }
  }

  /** Goes back from a text that was read to the example that is chosen. */
  private closeText(): void {
    this.reading = false;
    const { text } = this.state;
    if (!this.read && !text) return;
    this.read = "";
    // Where Back leads to no text, the link has the rest.
    if (text) this.set({ text: "", query: -1, key: -1, lock: false, window: "" });
    if (this.opening?.examples.length) void this.load(this.state.example);
  }

  /** Shows an open example. step: whether Back leads to the previous one. */
  choose(number: number, step = true): void {
    this.chose = true;
    this.asked.abort();
    this.reading = false;
    this.askProblem = this.read = "";
    const change = {
      text: "",
      example: this.opening!.examples[number],
      trace: this.opening!.digests[number],
      query: -1,
      key: -1,
      lock: false,
      window: "",
    };
    this.address.set(change, step && this.example?.number !== number);
    void this.load(this.state.example);
  }

  /** The example that is being read; -1: none. */
  private awaited = -1;

  /** Reads the example that the address names. */
  async load(name: string): Promise<void> {
    const place = this.find(name);
    this.missing = place === null ? name : null;
    if (place === null) {
      this.example = this.heads = null;
      return;
    }
    // A link holds the name, which stays right when other traces come or go.
    const { examples, digests } = this.opening!;
    if (examples.length > 1 && name !== examples[place]) this.set({ example: examples[place] });
    if (!this.another && this.state.trace !== digests[place]) this.set({ trace: digests[place] });
    // The change of the address above repeats the request.
    if (this.awaited === place) return;
    // Back to the shown example: drop the pending request.
    this.awaited = this.example?.number === place ? -1 : place;
    if (this.awaited < 0) return;
    try {
      const example = new Example(this.source, place, await this.source.json(`examples/${place}`));
      // Another that was chosen meanwhile stays, and so does a text that was read.
      if (this.awaited !== place) return;
      this.awaited = -1;
      if (this.read) return;
      this.heads = null;
      this.example = example;
      this.problem = "";
      if (this.chose) this.settle();
      this.chose = false;
      await this.measure(example);
    } catch (error) {
      if (this.awaited === place) this.awaited = -1;
      // An error of an example that is no longer wanted is no problem.
      else if (this.example?.number !== place) return;
      if (!this.read) this.problem = (error as Error).message;
    }
  }

  /** Whether the link was made of a trace that is not open, of the same name perhaps. */
  get another(): boolean {
    const { trace } = this.state;
    return trace !== "" && this.opening !== null && !this.opening.digests.includes(trace);
  }

  /** Parts of the link that do not exist here, and what is shown instead. */
  get notices(): string[] {
    const found = [...this.address.problems];
    const { state, example } = this;
    if (this.another && example)
      found.push(
        `The link was made from another trace, ${visible(state.trace, 20)}. This one is ` +
          `“${visible(example.description.name, 60)}”, so the tokens it selects may differ.`,
      );
    if (state.view === "compare" && this.opening && this.opening.examples.length < 2)
      found.push("Nothing to compare: only one trace is open. Open two with headloom view A B.");
    const ask = (what: string, number: number, count: number, none = 0) => {
      if (number >= 0 ? number < count : none < 0 && number === none) return;
      let all = `${what === "query" ? "queries" : `${what}s`} 0 to ${count - 1}`;
      if (what === "layer" && example?.several && state.view !== "training")
        all += `, ${[0, count - 1].map((n) => layerName(example, example.layers[n])).join(" to ")}`;
      if (count) found.push(`There is no ${what} ${number}: there are ${all}.`);
    };
    if (state.view === "training") {
      if (this.opening && !this.opening.history)
        found.push("No training to show: this is not a run.");
      const { layers, steps } = this.training?.description ?? {};
      if (layers && steps) {
        ask("layer", state.layer, layers.length);
        if (layers[state.layer]) ask("head", state.head, layers[state.layer].shape[0]);
        ask("snapshot", state.step, steps.length);
      }
    } else if (example) {
      ask("layer", state.layer, example.layers.length);
      const layer = example.layers[state.layer];
      if (layer) {
        ask("head", state.head, layer.heads);
        for (const head of state.heads.split(".").filter(Boolean))
          ask("head", Number(head), layer.heads);
        if (state.view !== "heads") {
          ask("query", state.query, layer.rows, -1);
          ask("key", state.key, layer.columns, -1);
        }
      }
    }
    return found;
  }

  /** Makes the link match what is shown. */
  settle(): void {
    this.address.problems = [];
    if (this.state.view === "training" && this.training) {
      const { layers, steps } = this.training.description;
      const layer = clamp(this.state.layer, layers.length);
      this.set({
        layer,
        head: clamp(this.state.head, layers[layer].shape[0]),
        step: clamp(this.state.step, steps.length),
      });
    } else if (this.example) {
      const { layer, head, state, example } = this;
      const within = (place: number, count: number) => (place < count ? place : -1);
      this.set({
        view: state.view === "training" ? "heads" : state.view,
        trace: this.opening!.digests[example.number] ?? "",
        layer: layer.number,
        head,
        heads: state.heads ? this.chosen.join(".") : "",
        query: within(Math.max(state.query, -1), layer.rows),
        key: within(Math.max(state.key, -1), layer.columns),
      });
    }
  }

  private async measure(example: Example): Promise<void> {
    for (let wait = 400; this.example === example; wait = Math.min(wait * 1.6, 5000)) {
      const heads = await this.source.json<Heads>(`examples/${example.number}/heads`);
      if (this.example !== example) return;
      this.heads = heads;
      if (heads.state !== "measuring" || !this.source.live) return;
      await new Promise((done) => setTimeout(done, wait));
    }
  }
}

export const clamp = (number: number, count: number) =>
  Math.min(Math.max(number, 0), Math.max(count - 1, 0));
