// Figures as SVG: text stays text, pictures of many cells are embedded as images.

import { INKS, type Theme } from "../colour";

export const FONTS = "'Helvetica Neue', Helvetica, Arial, 'Noto Sans', 'DejaVu Sans', sans-serif";

/** Text for markup; characters that XML cannot hold become a replacement character. */
export const escaped = (text: string) =>
  text
    // eslint-disable-next-line no-control-regex
    .replace(
      /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g,
      "\ufffd",
    )
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

export const rect = (
  x: number,
  y: number,
  width: number,
  height: number,
  fill: string,
  more = "",
) =>
  `<rect x="${n1(x)}" y="${n1(y)}" width="${n1(width)}" height="${n1(height)}" fill="${fill}"${more}/>`;

export const line = (x1: number, y1: number, x2: number, y2: number, stroke: string, width = 1) =>
  `<line x1="${n1(x1)}" y1="${n1(y1)}" x2="${n1(x2)}" y2="${n1(y2)}" stroke="${stroke}" stroke-width="${width}"/>`;

/** Cells as an image of one pixel each, enlarged without blur. */
export function image(
  x: number,
  y: number,
  width: number,
  height: number,
  shades: Uint8Array,
  rows: number,
  columns: number,
  table: Uint32Array,
): string {
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

export const picture = (
  x: number,
  y: number,
  width: number,
  height: number,
  canvas: HTMLCanvasElement,
) =>
  `<image x="${n1(x)}" y="${n1(y)}" width="${n1(width)}" height="${n1(height)}" preserveAspectRatio="none" image-rendering="pixelated" href="${canvas.toDataURL("image/png")}"/>`;

/** The smallest letters of a figure: 7 points on paper, in pixels of 1/96 inch. */
export const SMALLEST = 9.4;
/** Room left and right of what a figure holds. */
export const EDGE = 12;

let pen: CanvasRenderingContext2D | null = null;

/** How wide a text is; fonts differ, so with a little more than here. */
export function widthOf(content: string, size: number, weight = 400, more = 1.04): number {
  pen ??= document.createElement("canvas").getContext("2d")!;
  pen.font = `${weight} ${size}px ${FONTS}`;
  return more * pen.measureText(content).width;
}

/** A text as far as it fits into a room. */
export function fitted(content: string, size: number, room: number): string {
  if (widthOf(content, size) <= room) return content;
  const letters = Array.from(content);
  while (letters.length && widthOf(`${letters.join("")}…`, size) > room) letters.pop();
  return `${letters.join("")}…`;
}

/** A text in lines that fit into a room. */
export function lines(content: string, size: number, room: number, weight = 400): string[] {
  const found: string[] = [];
  let line = "";
  for (const word of content.split(" ")) {
    const longer = line ? `${line} ${word}` : word;
    if (line && widthOf(longer, size, weight) > room) {
      found.push(line);
      line = fitted(word, size, room);
    } else line = fitted(longer, size, room);
  }
  return line ? [...found, line] : found;
}

/** Names with a patch of colour before each, in as many rows as they need; and how high that is. */
export function legend(
  entries: [name: string, colour: string][],
  x: number,
  y: number,
  right: number,
  fill: string,
): { svg: string; high: number } {
  let [at, down] = [x, 0];
  const parts: string[] = [];
  for (const [name, colour] of entries) {
    const wide = widthOf(name, SMALLEST) + 24;
    if (at > x && at + wide > right) [at, down] = [x, down + 14];
    parts.push(
      rect(at, y + down - 7, 8, 8, colour, ' rx="2"'),
      text(at + 12, y + down, name, { size: SMALLEST, fill }),
    );
    at += wide;
  }
  return { svg: parts.join(""), high: entries.length ? down + 14 : 0 };
}

/** The whole figure with its title above and the trace's name in small print below. */
export function figure(
  width: number,
  height: number,
  theme: Theme,
  title: string,
  note: string,
  small: string,
  body: string,
): { svg: string; width: number; height: number } {
  const ink = INKS[theme];
  const room = width - 2 * EDGE;
  const parts: string[] = [];
  let y = 8;
  for (const line of lines(title, 13, room, 600))
    parts.push(text(EDGE, (y += 16), line, { size: 13, weight: 600 }));
  for (const line of lines(note, SMALLEST, room))
    parts.push(text(EDGE, (y += 13), line, { size: SMALLEST, fill: ink.faint }));
  parts.push(`<g transform="translate(0 ${n1((y += 10))})">${body}</g>`);
  y += height + 2;
  for (const line of lines(small, SMALLEST, room))
    parts.push(text(EDGE, (y += 12), line, { size: SMALLEST, fill: ink.faint }));
  const whole = Math.ceil(y + 8);
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width.toFixed(2)}" height="${whole}" viewBox="0 0 ${width.toFixed(2)} ${whole}" font-family="${escaped(FONTS)}" fill="${ink.ink}">` +
    `<title>${escaped(title)}</title>${rect(0, 0, width + 1, whole, ink.card)}${parts.join("")}</svg>`;
  return { svg, width, height: whole };
}
