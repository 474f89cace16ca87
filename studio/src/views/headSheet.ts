// All heads of a group on one sheet: where each stands, and how their pictures are painted.

import { nice } from "../axisTicks";
import type { Pen } from "../figure/pen";
import { joined, pooling, type Blocks, type Picture } from "../overview";
import type { Layer } from "../description";
import { APART, LABEL, rowGapOf, stripOf, type Fit } from "./arrangement";
import type { Cell, HeadGroup } from "./headGroups";

export interface Placed extends Cell {
  x: number;
  y: number;
}

interface Label {
  text: string;
  x: number;
  y: number;
}

export interface Sheet {
  width: number;
  height: number;
  tile: number;
  /** The height of a tile with what stands under it. */
  high: number;
  cells: Placed[];
  /** Names of rows, ending at x; of columns, around x. */
  rows: Label[];
  columns: Label[];
}

const NAMES = 17; // the height of the names of columns
const EDGE = 1; // the line around a picture
const FRAME = 4; // the frame around the one that is chosen

/** Where the heads of a group stand.
 *
 * under: pixels of captions below a tile and its strip.
 * spare: pixels of height that a row may take besides; small tiles stand farther apart then.
 */
export function sheetOf(group: HeadGroup, fit: Fit, under: number, spare = 0): Sheet {
  const { tile, gap } = fit;
  const strip = stripOf(tile);
  const left = group.numbered ? LABEL : FRAME,
    top = group.numbered ? NAMES : FRAME;
  const high = tile + strip.away + strip.high + under;
  const apart = tile < 38 ? Math.floor(Math.min(spare, tile * 0.7)) : 0;
  const step = { x: tile + gap, y: high + rowGapOf(fit) + apart };
  const deep = Math.ceil(group.rows.length / fit.parts);
  const everyRow = nice(13 / step.y),
    everyColumn = nice((tile >= 22 ? 24 : 15) / step.x);
  const wide = left + group.columns * step.x - gap + EDGE;
  const sheet: Sheet = {
    width: 0, height: 0, tile, high, cells: [], rows: [], columns: [],
  }; // prettier-ignore
  group.rows.forEach((row, n) => {
    const part = Math.floor(n / deep),
      x = part * (wide + APART) + left,
      y = top + (n % deep) * step.y;
    if (group.numbered && n % deep === 0)
      for (let head = 0; head < group.columns; head += everyColumn)
        sheet.columns.push({
          text: `${tile >= 22 ? "H" : ""}${head}`,
          x: x + head * step.x + tile / 2,
          y: 0,
        });
    if (row.label && (n % deep) % everyRow === 0)
      sheet.rows.push({ text: row.label, x: x - 6, y: y + tile / 2 });
    row.cells.forEach((cell, place) => sheet.cells.push({ ...cell, x: x + place * step.x, y }));
    sheet.width = Math.max(sheet.width, x - left + wide);
    sheet.height = Math.max(sheet.height, y + high);
  });
  return sheet;
}

/** How often blocks are joined two by two, so that a tile of so many dots can show them. */
export function factorOf(blocks: Blocks, dots: number): number {
  let factor = 1;
  while (Math.max(blocks.rows, blocks.columns) / factor > 1.5 * dots) factor *= 2;
  return factor;
}

interface Paint {
  sheet: Sheet;
  layers: Layer[];
  blocks: (layer: Layer) => Blocks;
  pictures: (Picture[] | null)[];
  table: Uint32Array;
  /** The colour of a head's strip. */
  strip: (cell: Cell) => string;
  /** Of a tile that waits for its picture, and of the line around one. */
  track: string;
  line: string;
}

/** Paints a sheet on its canvas; repaints only what has changed. */
export class SheetPainter {
  private readonly atlas = document.createElement("canvas");
  private before: (Pick<Paint, "sheet" | "table" | "strip"> & { ratio: number }) | null = null;
  private painted: (Picture[] | null | undefined)[] = [];

  constructor(private readonly canvas: HTMLCanvasElement) {}

  paint(of: Paint, ratio: number): void {
    const { sheet, table, pictures } = of;
    const context = this.canvas.getContext("2d");
    if (!context) return;
    const { before } = this;
    const strips = before?.strip !== of.strip;
    if (before?.sheet !== sheet || before.table !== table || before.ratio !== ratio) {
      this.canvas.width = Math.max(1, Math.round(sheet.width * ratio));
      this.canvas.height = Math.max(1, Math.round(sheet.height * ratio));
      this.painted = [];
    }
    this.before = { sheet, table, strip: of.strip, ratio };
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.last = of;
    for (const [layer, cells] of byLayer(sheet)) {
      const same = this.painted[layer] === pictures[layer];
      this.painted[layer] = pictures[layer];
      if (!same) this.paintLayer(context, of, cells, of.layers[layer], ratio);
      if (!same || strips) paintStrips(context, of, cells);
    }
  }

  /** Paints all of it, as it was painted last. */
  whole(pen: Pen): void {
    const of = this.last;
    if (!of) return;
    for (const [layer, cells] of byLayer(of.sheet)) {
      this.paintLayer(pen, of, cells, of.layers[layer], 4);
      paintStrips(pen, of, cells);
    }
  }
  private last: Paint | null = null;

  private paintLayer(context: Pen, of: Paint, cells: Placed[], layer: Layer, ratio: number): void {
    const { tile } = of.sheet;
    const pictures = of.pictures[layer.number];
    const blocks = of.blocks(layer);
    const factor = factorOf(blocks, tile * ratio);
    const { rows, columns } = joined(blocks, factor);
    const edged = tile >= 20;
    if (pictures?.length && rows && columns) this.fill(of, layer, blocks, factor, pictures);
    context.imageSmoothingEnabled = Math.max(rows, columns) > tile * ratio;
    context.imageSmoothingQuality = "high";
    for (const { head, x, y } of cells) {
      if (edged) {
        context.fillStyle = of.line;
        context.fillRect(x - EDGE, y - EDGE, tile + 2 * EDGE, tile + 2 * EDGE);
      }
      context.fillStyle = of.track;
      context.fillRect(x, y, tile, tile);
      if (pictures?.[head] && rows && columns)
        context.drawImage(this.atlas, 0, head * rows, columns, rows, x, y, tile, tile);
    }
  }

  /** The pictures of a layer's heads, one below the other. */
  private fill(of: Paint, layer: Layer, blocks: Blocks, factor: number, pictures: Picture[]): void {
    const { rows, columns } = joined(blocks, factor);
    this.atlas.width = columns;
    this.atlas.height = rows * pictures.length;
    const image = new ImageData(columns, rows * pictures.length);
    const pixels = new Uint32Array(image.data.buffer);
    const pool = factor === 1 ? null : pooling(layer, blocks, factor);
    pictures.forEach((picture, head) => {
      if (!picture) return;
      const { shades } = picture;
      const shown = pool ? pool(shades) : shades;
      for (let n = 0, at = head * rows * columns; n < shown.length; n++, at++)
        pixels[at] = of.table[shown[n]];
    });
    this.atlas.getContext("2d")!.putImageData(image, 0, 0);
  }
}

function byLayer(sheet: Sheet): Map<number, Placed[]> {
  const found = new Map<number, Placed[]>();
  for (const cell of sheet.cells) {
    const cells = found.get(cell.layer);
    if (cells) cells.push(cell);
    else found.set(cell.layer, [cell]);
  }
  return found;
}

function paintStrips(pen: Pen, { sheet, strip }: Paint, cells: Placed[]): void {
  const { away, high } = stripOf(sheet.tile);
  for (const cell of cells) {
    pen.fillStyle = strip(cell);
    pen.fillRect(cell.x, cell.y + sheet.tile + away, sheet.tile, high);
  }
}

/** The label of a head for screen readers, and the caption of its tile. */
export interface Shown extends Cell {
  label: string;
  words: string;
}

/** The buttons of a sheet: one for each head, put up at once, as thousands of them may be. */
export class SheetButtons {
  private readonly buttons: HTMLButtonElement[] = [];
  private readonly labelled: Shown[] = [];
  private sheet: Sheet | null = null;

  constructor(private readonly box: HTMLElement) {}

  /** captioned: whether words stand below the tiles. */
  put(sheet: Sheet, shown: Shown[], captioned: boolean): void {
    for (const extra of this.buttons.splice(shown.length)) extra.remove();
    const added = document.createDocumentFragment();
    shown.forEach((one, n) => {
      let button = this.buttons[n];
      const fresh = !button;
      if (!button) {
        button = document.createElement("button");
        button.type = "button";
        button.className = "tile";
        button.tabIndex = -1;
        this.buttons.push(button);
        added.append(button);
      }
      if (fresh || this.sheet !== sheet) {
        button.style.left = `${sheet.cells[n].x}px`;
        button.style.top = `${sheet.cells[n].y}px`;
      }
      const before = fresh ? null : this.labelled[n];
      this.labelled[n] = one;
      if (before?.layer !== one.layer || before.head !== one.head)
        button.dataset.cell = `${one.layer}.${one.head}`;
      if (before?.label !== one.label) button.ariaLabel = one.label;
      if (captioned || button.firstChild) button.replaceChildren(...below(one, captioned));
    });
    this.box.append(added);
    this.sheet = sheet;
  }
}

function below(one: Shown, captioned: boolean): HTMLElement[] {
  if (!captioned) return [];
  const words = document.createElement("small");
  words.textContent = one.words;
  return [words];
}
