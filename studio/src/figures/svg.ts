// Figures as SVG: text stays text, pictures of many cells are embedded as images.

import { INKS, type Theme } from "../colour";

export const FONTS = "'Helvetica Neue', Helvetica, Arial, 'Noto Sans', 'DejaVu Sans', sans-serif";

/** Text for markup; characters that XML cannot hold become a replacement character. */
export const escaped = (text: string) =>
  text
    // eslint-disable-next-line no-control-regex
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
    .replace(/&/g, "&amp;")
    .replace(/</g, "&lt;")
    .replace(/>/g, "&gt;")
    .replace(/"/g, "&quot;");

export const n1 = (number: number) => String(Math.round(number * 10) / 10);

interface TextOptions {
  size?: number;
  fill?: string;
  anchor?: "start" | "middle" | "end";
  weight?: number;
  turn?: number;
  middle?: boolean;
}

export function text(x: number, y: number, content: string, options: TextOptions = {}): string {
  const { size = 11, fill, anchor, weight, turn, middle } = options;
  return (
    `<text x="${n1(x)}" y="${n1(y)}" font-size="${size}"` +
    (fill ? ` fill="${fill}"` : "") +
    (anchor && anchor !== "start" ? ` text-anchor="${anchor}"` : "") +
    (weight ? ` font-weight="${weight}"` : "") +
    (middle ? ` dominant-baseline="central"` : "") +
    (turn ? ` transform="rotate(${turn} ${n1(x)} ${n1(y)})"` : "") +
    ` unicode-bidi="isolate">${escaped(content)}</text>`
  );
}

export const rect = (x: number, y: number, width: number, height: number, fill: string, more = "") =>
  `<rect x="${n1(x)}" y="${n1(y)}" width="${n1(width)}" height="${n1(height)}" fill="${fill}"${more}/>`;

export const line = (x1: number, y1: number, x2: number, y2: number, stroke: string, width = 1) =>
  `<line x1="${n1(x1)}" y1="${n1(y1)}" x2="${n1(x2)}" y2="${n1(y2)}" stroke="${stroke}" stroke-width="${width}"/>`;

/** Cells as an image of one pixel each, enlarged without blur. */
export function image(x: number, y: number, width: number, height: number, shades: Uint8Array, rows: number, columns: number, table: Uint32Array): string {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(columns, 1);
  canvas.height = Math.max(rows, 1);
  const context = canvas.getContext("2d")!;
  if (rows && columns) {
    const pixels = context.createImageData(columns, rows);
    new Uint32Array(pixels.data.buffer).forEach((_, n, all) => (all[n] = table[shades[n]]));
    context.putImageData(pixels, 0, 0);
  }
  return picture(x, y, width, height, canvas);
}

export const picture = (x: number, y: number, width: number, height: number, canvas: HTMLCanvasElement) =>
  `<image x="${n1(x)}" y="${n1(y)}" width="${n1(width)}" height="${n1(height)}" preserveAspectRatio="none" image-rendering="pixelated" href="${canvas.toDataURL("image/png")}"/>`;

/** The whole figure with its title above and the trace's name in small print below. */
export function figure(width: number, height: number, theme: Theme, title: string, note: string, small: string, body: string): { svg: string; width: number; height: number } {
  const ink = INKS[theme];
  const whole = height + 70;
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${n1(width)}" height="${n1(whole)}" viewBox="0 0 ${n1(width)} ${n1(whole)}" font-family="${escaped(FONTS)}" fill="${ink.ink}">` +
    `<title>${escaped(title)}</title>` +
    rect(0, 0, width, whole, ink.card) +
    text(20, 26, title, { size: 14, weight: 600 }) +
    (note ? text(20, 42, note, { size: 10.5, fill: ink.faint }) : "") +
    `<g transform="translate(0 48)">${body}</g>` +
    text(20, whole - 8, small, { size: 8, fill: ink.faint }) +
    `</svg>`;
  return { svg, width, height: whole };
}
