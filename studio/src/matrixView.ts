// The visible part of a matrix, and the cells at its pixels.

import type { Layer } from "./description";
import type { Place } from "./gestures";

export interface Viewport {
  /** The first row and column in sight, in cells; may lie between two. */
  top: number;
  left: number;
  /** Pixels of a cell. */
  zoom: number;
}

export interface Cell {
  row: number;
  column: number;
}

export interface Extent {
  width: number;
  height: number;
  /** Room for the names of rows and columns; right, for the end of the last one, which leans. */
  margin: { left: number; top: number; right: number };
}

/** Pixels of a cell, at most: as one zooms in, and of a small matrix that fills the stage. */
const LARGEST = 64,
  FILLING = 240;

export const plot = ({ width, height, margin }: Extent) => ({
  wide: Math.max(width - margin.left - margin.right, 1),
  high: Math.max(height - margin.top - 12, 1),
});

/** The room that the names of a layer's rows and columns take. */
export function marginOf(layer: Layer): Extent["margin"] {
  const longest = (tokens: string[]) =>
    Math.max(...tokens.slice(0, 2000).map((token) => Math.min(token.length, 14)), 3);
  return {
    left: Math.max(74, Math.min(longest(layer.queryTokens) * 8 + 22, 128)),
    top: 38 + Math.min(longest(layer.keyTokens) * 5 + 12, 62),
    right: Math.min(longest(layer.keyTokens.slice(-1)) * 5 + 6, 58),
  };
}

/** The zoom at which the whole matrix is seen. */
export function wholeZoom(extent: Extent, layer: Layer): number {
  const { wide, high } = plot(extent);
  return Math.min(wide / Math.max(layer.columns, 1), high / Math.max(layer.rows, 1), FILLING);
}

/** A window moved to where it stays on the matrix. */
export function held(view: Viewport, extent: Extent, layer: Layer): Viewport {
  const { wide, high } = plot(extent);
  const least = wholeZoom(extent, layer);
  const zoom = Math.min(Math.max(view.zoom, least), Math.max(LARGEST, least));
  const within = (start: number, room: number, count: number) =>
    Math.min(Math.max(start, 0), Math.max(count - room / zoom, 0));
  return {
    zoom,
    top: within(view.top, high, layer.rows),
    left: within(view.left, wide, layer.columns),
  };
}

/** The cell at a place of the plot, in pixels; null: there is none. */
export function cellAt(view: Viewport, layer: Layer, { x, y }: Place): Cell | null {
  const row = Math.floor(view.top + y / view.zoom),
    column = Math.floor(view.left + x / view.zoom);
  return x >= 0 && y >= 0 && row < layer.rows && column < layer.columns ? { row, column } : null;
}

/** The viewport scaled by a factor around a fixed point of the plot. */
export function zoomed(
  view: Viewport,
  extent: Extent,
  layer: Layer,
  factor: number,
  { x, y }: Place,
): Viewport {
  const row = view.top + y / view.zoom,
    column = view.left + x / view.zoom;
  const least = wholeZoom(extent, layer);
  const zoom = Math.min(Math.max(view.zoom * factor, least), Math.max(LARGEST, least));
  return { zoom, top: row - y / zoom, left: column - x / zoom };
}

/** The viewport moved as little as needed to show a cell. */
export function showing(view: Viewport, extent: Extent, row: number, column: number): Viewport {
  const { wide, high } = plot(extent);
  const into = (start: number, at: number, room: number) =>
    Math.min(Math.max(start, at + 1 - room / view.zoom), at);
  return { ...view, top: into(view.top, row, high), left: into(view.left, column, wide) };
}
