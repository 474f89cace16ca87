// The visible part of a matrix and the selected cell, moved by pointer, wheel and keys. Several
// matrices side by side can share one window.

import { untrack } from "svelte";
import { momentOf } from "./axisTicks";
import type { Layer } from "./description";
import type { Place } from "./gestures";
import {
  held,
  plot,
  showing,
  wholeZoom,
  zoomed,
  type Cell,
  type Extent,
  type Viewport,
} from "./matrixView";
import { clamp, type Studio } from "./studio.svelte";
import { grouped } from "./text";

const SCALE_ORDER = ["root", "linear", "log"] as const;
const round = (number: number) => Math.round(number * 100) / 100;

export class MatrixWindow {
  view: Viewport = $state.raw({ top: 0, left: 0, zoom: 0 });
  hovered: Cell | null = $state.raw(null);
  /** The selection in the address: a cell, or a row or column alone, where the other is -1. */
  readonly kept: Cell = $derived.by(() => {
    const { layer, state } = this.studio;
    return {
      row: state.query < layer.rows ? Math.max(state.query, -1) : -1,
      column: state.key < layer.columns ? Math.max(state.key, -1) : -1,
    };
  });
  readonly chosen: Cell | null = $derived.by(() =>
    this.kept.row >= 0 && this.kept.column >= 0 ? this.kept : null,
  );
  readonly cell: Cell | null = $derived.by(() => this.hovered ?? this.chosen);
  /** The framed cell, row or column. */
  readonly framed: Cell | null = $derived.by(
    () => this.hovered ?? (this.kept.row >= 0 || this.kept.column >= 0 ? this.kept : null),
  );
  /** The window that was last written into the address. */
  private written = "";

  constructor(
    private readonly studio: Studio,
    private readonly extent: () => Extent,
  ) {
    // The window that the address holds, or the whole.
    $effect(() => {
      const text = studio.state.window;
      void [extent(), studio.layer];
      untrack(() => {
        if (text && text === this.written) return;
        const [top, left, rows] = text.split(",").map(Number);
        if (text && [top, left, rows].every(Number.isFinite) && rows > 0)
          this.move({ top, left, zoom: plot(extent()).high / rows }, false);
        else this.whole(false);
      });
    });
  }

  /** Which rows and columns of a layer are in sight, in words. */
  words(layer: Layer): string {
    const { view } = this;
    const { wide, high } = plot(this.extent());
    const range = (from: number, room: number, count: number, seconds: number[] | null) => {
      const [first, last] = [
        Math.floor(from),
        Math.min(count, Math.ceil(from + room / view.zoom)) - 1,
      ];
      const when = seconds ? ` (${momentOf(seconds, first)} to ${momentOf(seconds, last)})` : "";
      return `${grouped(first)}–${grouped(last)}${when}`;
    };
    const rows = range(view.top, high, layer.rows, layer.querySeconds);
    const columns = range(view.left, wide, layer.columns, layer.keySeconds);
    const all = `${grouped(layer.rows)} × ${grouped(layer.columns)}`;
    return `rows ${rows}, columns ${columns} of ${all}`;
  }

  move(next: Viewport, keep = true): void {
    const { studio } = this;
    const extent = this.extent();
    this.view = held(next, extent, studio.layer);
    if (!keep) return;
    const { top, left, zoom } = this.view;
    const whole = zoom <= wholeZoom(extent, studio.layer) * 1.0001;
    this.written = whole ? "" : [top, left, plot(extent).high / zoom].map(round).join();
    if (this.written !== studio.state.window) studio.set({ window: this.written });
  }

  whole(keep = true): void {
    this.move({ top: 0, left: 0, zoom: wholeZoom(this.extent(), this.studio.layer) }, keep);
  }

  /** By so many pixels. */
  pan(dx: number, dy: number): void {
    const { top, left, zoom } = this.view;
    this.move({ zoom, top: top - dy / zoom, left: left - dx / zoom });
  }

  zoom(factor: number, at: Place): void {
    this.move(zoomed(this.view, this.extent(), this.studio.layer, factor, at));
  }

  /** Around the cell that is chosen, where it is in sight; it stays there as a whole. */
  zoomMiddle(factor: number): void {
    const extent = this.extent();
    const { wide, high } = plot(extent);
    const { view, chosen } = this;
    const at = chosen && {
      x: (chosen.column + 0.5 - view.left) * view.zoom,
      y: (chosen.row + 0.5 - view.top) * view.zoom,
    };
    if (!at || at.x < 0 || at.x > wide || at.y < 0 || at.y > high)
      return this.zoom(factor, { x: wide / 2, y: high / 2 });
    const next = zoomed(view, extent, this.studio.layer, factor, at);
    this.move(showing(next, extent, chosen.row, chosen.column));
  }

  choose(row: number, column: number): void {
    this.hovered = null;
    this.studio.set({ query: row, key: column, lock: true });
    this.move(showing(this.view, this.extent(), row, column));
  }

  private step(rows: number, columns: number): void {
    const { kept, view } = this;
    const { layer } = this.studio;
    const row = kept.row >= 0 ? kept.row : Math.max(0, Math.ceil(view.top)) - rows,
      column = kept.column >= 0 ? kept.column : Math.max(0, Math.ceil(view.left)) - columns;
    this.choose(clamp(row + rows, layer.rows), clamp(column + columns, layer.columns));
  }

  /** The keys of all matrix views; with Shift the arrows move a quarter of the window. */
  moves(event: KeyboardEvent): Record<string, () => void> {
    const { studio } = this;
    const quarter = Math.round(plot(this.extent()).high / this.view.zoom / 4);
    const far = event.shiftKey ? Math.max(1, quarter) : 1;
    const scale = SCALE_ORDER[(SCALE_ORDER.indexOf(studio.state.scale) + 1) % 3];
    return {
      ArrowUp: () => this.step(-far, 0),
      ArrowDown: () => this.step(far, 0),
      ArrowLeft: () => this.step(0, -far),
      ArrowRight: () => this.step(0, far),
      "+": () => this.zoomMiddle(1.5),
      "=": () => this.zoomMiddle(1.5),
      "-": () => this.zoomMiddle(1 / 1.5),
      "0": () => this.whole(),
      l: () => studio.set({ scale }),
    };
  }
}
