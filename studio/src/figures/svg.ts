// Figures as SVG: text stays text, pictures of many cells are embedded as images.

import { INKS, paintShades, type Theme } from "../colour";
import type { Figure } from "../studio.svelte";

export const FONTS = "'Helvetica Neue', Helvetica, Arial, 'Noto Sans', 'DejaVu Sans', sans-serif";

/** Characters that XML cannot hold: controls, and halves of pairs that stand alone. */
const NO_XML = new RegExp(
  [
    "[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\ufffe\\uffff]",
    "[\\ud800-\\udbff](?![\\udc00-\\udfff])",
    "(?<![\\ud800-\\udbff])[\\udc00-\\udfff]",
  ].join("|"),
  "g",
);

/** Text for markup; characters that XML cannot hold become a replacement character. */
export const escaped = (text: string) =>
  text
    .replace(NO_XML, "\ufffd")
    .replace(/&/g, "&amp;")
    .replace(/</g, "&lt;")
    .replace(/>/g, "&gt;")
    .replace(/"/g, "&quot;");

/** A number with one decimal at most. */
export const fixed1 = (number: number) => String(Math.round(number * 10) / 10);

/** An element as markup; numbers have one decimal, and what is undefined is left out. */
export function element(
  name: string,
  attributes: Record<string, string | number | undefined>,
  content?: string,
): string {
  const written = Object.entries(attributes)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => ` ${key}="${typeof value === "number" ? fixed1(value) : value}"`);
  const open = `<${name}${written.join("")}`;
  return content === undefined ? `${open}/>` : `${open}>${content}</${name}>`;
}

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
  return element(
    "text",
    {
      x,
      y,
      "font-size": String(size),
      fill,
      "text-anchor": anchor === "start" ? undefined : anchor,
      "font-weight": weight,
      "dominant-baseline": middle ? "central" : undefined,
      transform: turn ? `rotate(${turn} ${fixed1(x)} ${fixed1(y)})` : undefined,
      "unicode-bidi": "isolate",
    },
    escaped(content),
  );
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export const rect = (box: Box, fill: string, more: { rx?: string; opacity?: number } = {}) =>
  element("rect", {
    ...box,
    fill,
    "fill-opacity": more.opacity?.toFixed(2),
    rx: more.rx,
  });

export const line = (x1: number, y1: number, x2: number, y2: number, stroke: string, width = 1) =>
  element("line", { x1, y1, x2, y2, stroke, "stroke-width": width.toFixed(2) });

/** Cells as an image of one pixel each, enlarged without blur. */
export function image(
  box: Box,
  cells: { shades: Uint8Array; rows: number; columns: number },
  table: Uint32Array,
): string {
  const canvas = document.createElement("canvas");
  paintShades(canvas, cells.shades, cells.rows, cells.columns, table);
  return picture(box, canvas);
}

export const picture = (box: Box, canvas: HTMLCanvasElement) =>
  element("image", {
    ...box,
    preserveAspectRatio: "none",
    "image-rendering": "pixelated",
    href: canvas.toDataURL("image/png"),
  });

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
  const done: string[] = [];
  let line = "";
  for (const word of content.split(" ")) {
    const longer = line ? `${line} ${word}` : word;
    if (line && widthOf(longer, size, weight) > room) {
      done.push(line);
      line = fitted(word, size, room);
    } else line = fitted(longer, size, room);
  }
  return line ? [...done, line] : done;
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
      rect({ x: at, y: y + down - 7, width: 8, height: 8 }, colour, { rx: "2" }),
      text(at + 12, y + down, name, { size: SMALLEST, fill }),
    );
    at += wide;
  }
  return { svg: parts.join(""), high: entries.length ? down + 14 : 0 };
}

/** What a view shows: its parts as markup, so many pixels high. */
interface Content {
  width: number;
  height: number;
  theme: Theme;
  title: string;
  note: string;
  /** The trace's name and what made it. */
  small: string;
  parts: string[];
  of?: string;
}

/** The whole figure with its title above and the trace's name in small print below. */
export function figure(content: Content): Figure {
  const { width, height, theme, title, note, small, parts: body, of } = content;
  const ink = INKS[theme];
  const room = width - 2 * EDGE;
  const parts: string[] = [];
  let y = 8;
  for (const line of lines(title, 13, room, 600))
    parts.push(text(EDGE, (y += 16), line, { size: 13, weight: 600 }));
  for (const line of lines(note, SMALLEST, room))
    parts.push(text(EDGE, (y += 13), line, { size: SMALLEST, fill: ink.faint }));
  parts.push(element("g", { transform: `translate(0 ${fixed1((y += 10))})` }, body.join("")));
  y += height + 2;
  for (const line of lines(small, SMALLEST, room))
    parts.push(text(EDGE, (y += 12), line, { size: SMALLEST, fill: ink.faint }));
  const whole = Math.ceil(y + 8);
  const ground = rect({ x: 0, y: 0, width: width + 1, height: whole }, ink.card);
  const svg = element(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      width: width.toFixed(2),
      height: whole,
      viewBox: `0 0 ${width.toFixed(2)} ${whole}`,
      "font-family": escaped(FONTS),
      fill: ink.ink,
    },
    element("title", {}, escaped(title)) + ground + parts.join(""),
  );
  return { svg, width, height: whole, of };
}
