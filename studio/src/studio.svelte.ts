// What all views share: the collection, the address, the theme, and what was last said aloud.

import { Address, type State, type View } from "./address.svelte";
import type { Theme } from "./colour";
import { Example, type Heads, type Layer, type Opening } from "./model";
import type { Source } from "./source";
import { Training } from "./training";

/** A figure of what a view shows: SVG as text, its size in pixels. */
export interface Figure {
  svg: string;
  width: number;
  height: number;
}

export class Studio {
  readonly address: Address;
  opening: Opening | null = $state.raw(null);
  example: Example | null = $state.raw(null);
  heads: Heads | null = $state.raw(null);
  training: Training | null = $state.raw(null);
  problem = $state("");
  said = $state("");
  /** The place that the studio has, in pixels: a window, or a notebook's cell. */
  width = $state(1440);
  system: Theme = $state("light");
  /** Whether the system chooses the colours; then it also chooses between light and dark. */
  forced = $state(false);
  /** Gives the focus to the picture when what had it is gone. */
  keepFocus: () => void = () => {};
  /** What a view does with a key; true: it was its key. */
  keys: ((event: KeyboardEvent) => boolean) | null = null;
  /** What a view gives to export, so many pixels of 1/96 inch wide. */
  figure: ((theme: Theme, wide: number) => Promise<Figure> | Figure) | null = null;

  constructor(
    readonly source: Source,
    readonly linked: boolean,
    start = "",
  ) {
    this.address = new Address(linked, start);
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
    return (!this.forced && this.state.theme) || this.system;
  }

  /** The layer that is chosen, within what the trace has. */
  get layer(): Layer {
    const { layers } = this.example!;
    return layers[clamp(this.state.layer, layers.length)];
  }

  get head(): number {
    return clamp(this.state.head, this.layer.heads);
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

  go(view: View): void {
    if (view !== this.state.view) this.address.set({ view }, true);
  }

  set(change: Partial<State>): void {
    this.address.set(change);
  }

  /** Turns to a head; the token in question stays where the other layer has the same tokens. */
  select(layer: number, head: number): void {
    const from = this.layer, to = this.example!.layers[layer];
    const { query, key, lock, window } = this.state;
    const [queries, keys] = [to.queries === from.queries, to.keys === from.keys];
    const place = { query: queries ? query : -1, key: keys ? key : -1 };
    this.set({ layer, head, heads: "", ...place, lock: lock && (place.query >= 0 || place.key >= 0), window: queries && keys ? window : "" });
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

  /** Reads the example that the address names. */
  async load(number: number): Promise<void> {
    const within = clamp(number, this.opening!.examples.length);
    if (this.example?.number === within) return;
    try {
      const example = new Example(this.source, within, await this.source.json(`examples/${within}`));
      this.heads = null;
      this.example = example;
      this.problem = "";
      await this.measure(example);
    } catch (error) {
      this.problem = (error as Error).message;
    }
  }

  private async measure(example: Example): Promise<void> {
    for (let wait = 400; this.example === example; wait = Math.min(wait * 1.6, 5000)) {
      const heads = await this.source.json<Heads>(`examples/${example.number}/heads`);
      if (this.example !== example) return;
      this.heads = heads;
      if (heads.state !== "pending" || !this.source.live) return;
      await new Promise((done) => setTimeout(done, wait));
    }
  }
}

export const clamp = (number: number, count: number) => Math.min(Math.max(number, 0), Math.max(count - 1, 0));
