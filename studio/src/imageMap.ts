// The map of a row over an image, painted on a canvas.

import { INKS, RAMPS, type Theme } from "./colour";
import { shadesOf, type Looks } from "./images";

export interface ImageMap {
  looks: Looks;
  /** Drawn under the map; null: the map is drawn alone. */
  picture: ImageBitmap | null;
  /** The patch that looks, where it is one of these. */
  frame: { row: number; column: number } | null;
  /** Width over height. */
  shape: number;
}

/** Pixels of the longer side. */
const SIDE = 720;

export function paintMap(canvas: HTMLCanvasElement, map: ImageMap, theme: Theme): void {
  const { looks, picture, frame, shape } = map;
  const wide = Math.max(1, shape >= 1 ? SIDE : Math.round(SIDE * shape));
  const high = Math.max(1, shape >= 1 ? Math.round(SIDE / shape) : SIDE);
  canvas.width = wide;
  canvas.height = high;
  const context = canvas.getContext("2d");
  if (!context) return;
  context.clearRect(0, 0, wide, high);
  if (picture) {
    context.drawImage(picture, 0, 0, wide, high);
    // Less bright, so that colours stand out from it.
    context.fillStyle = theme === "dark" ? "#0008" : "#fff8";
    context.fillRect(0, 0, wide, high);
  }
  const { rows, columns } = looks;
  const table = RAMPS[theme].weight;
  shadesOf(looks.weights).forEach((shade, n) => {
    const pixel = table[Math.round(255 * shade)];
    const opacity = picture ? 0.75 * shade : 1;
    const parts = [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
    context.fillStyle = `rgb(${parts.join(" ")} / ${opacity})`;
    // Between whole dots, so that no seams show.
    const [row, column] = [Math.floor(n / columns), n % columns];
    const x = Math.round((column / columns) * wide),
      y = Math.round((row / rows) * high);
    const right = Math.round(((column + 1) / columns) * wide),
      bottom = Math.round(((row + 1) / rows) * high);
    context.fillRect(x, y, right - x, bottom - y);
  });
  if (frame) {
    context.strokeStyle = INKS[theme].query;
    context.lineWidth = 3;
    context.strokeRect(
      (frame.column / columns) * wide + 1.5,
      (frame.row / rows) * high + 1.5,
      wide / columns - 3,
      high / rows - 3,
    );
  }
}
