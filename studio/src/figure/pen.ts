// A pen paints on a canvas or writes SVG. A view paints each picture by one function, kept with its
// canvas: a figure calls it again with an SVG pen, so that lines stay lines and text stays text.

export type Pen = Pick<
  CanvasRenderingContext2D,
  | "fillStyle"
  | "strokeStyle"
  | "lineWidth"
  | "lineCap"
  | "globalAlpha"
  | "font"
  | "textAlign"
  | "textBaseline"
  | "imageSmoothingEnabled"
  | "imageSmoothingQuality"
  | "save"
  | "restore"
  | "translate"
  | "rotate"
  | "beginPath"
  | "moveTo"
  | "lineTo"
  | "bezierCurveTo"
  | "arc"
  | "rect"
  | "clip"
  | "fill"
  | "stroke"
  | "fillRect"
  | "strokeRect"
  | "fillText"
  | "measureText"
  | "createLinearGradient"
  | "drawImage"
>;

interface Painted {
  width: number;
  height: number;
  paint: (pen: Pen) => void;
}
const paintings = new WeakMap<HTMLCanvasElement, Painted>();

/** How a canvas was painted; undefined: by its dots alone. */
export const paintingOf = (canvas: HTMLCanvasElement) => paintings.get(canvas);

/** Keeps how a canvas is painted, of so many pixels of the page. */
export const keepPainting = (canvas: HTMLCanvasElement, painted: Painted) =>
  paintings.set(canvas, painted);

/** Paints a canvas anew, of so many pixels of the page. */
export function paintOn(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
  paint: (pen: Pen) => void,
): void {
  keepPainting(canvas, { width, height, paint });
  const ratio = Math.min(window.devicePixelRatio || 1, 16_000 / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const context = canvas.getContext("2d");
  if (!context) return;
  context.scale(ratio, ratio);
  paint(context);
}

let ruler: CanvasRenderingContext2D | null = null;
export const FONTS = "'Inter', system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif";

/** How wide a text is, in pixels. */
export function widthOf(content: string, size: number, weight = 400): number {
  ruler ??= document.createElement("canvas").getContext("2d")!;
  ruler.font = `${weight} ${size}px ${FONTS}`;
  return ruler.measureText(content).width;
}

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

/** A number with two decimals at most. */
const short = (number: number) => String(Math.round(number * 100) / 100);

/** An element as markup, without undefined attributes. */
export function element(
  name: string,
  attributes: Record<string, string | number | undefined>,
  content?: string,
): string {
  const written = Object.entries(attributes)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => ` ${key}="${typeof value === "number" ? short(value) : value}"`);
  const open = `<${name}${written.join("")}`;
  return content === undefined ? `${open}/>` : `${open}>${content}</${name}>`;
}

type Matrix = [a: number, b: number, c: number, d: number, e: number, f: number];
/** What `save` keeps. */
const KEPT = ["fillStyle", "strokeStyle", "lineWidth", "lineCap", "globalAlpha", "font"] as const;
const ANCHORS: Record<string, string | undefined> = {
  right: "end",
  end: "end",
  center: "middle",
};
let ids = 0;

/** A pen that writes SVG. */
export class SvgPen implements Pen {
  fillStyle: Pen["fillStyle"] = "#000000";
  strokeStyle: Pen["strokeStyle"] = "#000000";
  lineWidth = 1;
  lineCap: CanvasLineCap = "butt";
  globalAlpha = 1;
  font = "10px sans-serif";
  textAlign: CanvasTextAlign = "start";
  textBaseline: CanvasTextBaseline = "alphabetic";
  imageSmoothingEnabled = true;
  imageSmoothingQuality: ImageSmoothingQuality = "low";
  private readonly parts: string[] = [];
  private path: string[] = [];
  private at: Matrix = [1, 0, 0, 1, 0, 0];
  private readonly saved: { at: Matrix; style: Partial<SvgPen>; clips: number }[] = [];
  private clips = 0;

  /** All that was painted. */
  get svg(): string {
    return this.parts.join("") + "</g>".repeat(this.clips);
  }

  save(): void {
    const style = Object.fromEntries(KEPT.map((name) => [name, this[name]]));
    this.saved.push({ at: [...this.at], style, clips: this.clips });
  }
  restore(): void {
    const before = this.saved.pop();
    if (!before) return;
    Object.assign(this, before.style);
    this.at = before.at;
    for (; this.clips > before.clips; this.clips--) this.parts.push("</g>");
  }
  translate(x: number, y: number): void {
    const [a, b, c, d, e, f] = this.at;
    this.at = [a, b, c, d, a * x + c * y + e, b * x + d * y + f];
  }
  rotate(angle: number): void {
    const [a, b, c, d, e, f] = this.at;
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    this.at = [a * cos + c * sin, b * cos + d * sin, c * cos - a * sin, d * cos - b * sin, e, f];
  }
  private point(x: number, y: number): string {
    const [a, b, c, d, e, f] = this.at;
    return `${short(a * x + c * y + e)} ${short(b * x + d * y + f)}`;
  }
  beginPath(): void {
    this.path = [];
  }
  moveTo(x: number, y: number): void {
    this.path.push(`M${this.point(x, y)}`);
  }
  lineTo(x: number, y: number): void {
    this.path.push(`${this.path.length ? "L" : "M"}${this.point(x, y)}`);
  }
  bezierCurveTo(a: number, b: number, c: number, d: number, x: number, y: number): void {
    this.path.push(`C${this.point(a, b)} ${this.point(c, d)} ${this.point(x, y)}`);
  }
  /** A whole circle: no view draws a part of one. */
  arc(x: number, y: number, radius: number): void {
    const half = `A${short(radius)} ${short(radius)} 0 1 0 `;
    this.moveTo(x - radius, y);
    this.path.push(`${half}${this.point(x + radius, y)}${half}${this.point(x - radius, y)}Z`);
  }
  rect(x: number, y: number, width: number, height: number): void {
    const corners = [
      [x, y],
      [x + width, y],
      [x + width, y + height],
      [x, y + height],
    ];
    this.path.push(`M${corners.map(([across, down]) => this.point(across, down)).join("L")}Z`);
  }
  clip(): void {
    const id = `clip-${ids++}`;
    this.parts.push(
      element("clipPath", { id }, element("path", { d: this.path.join("") })),
      `<g clip-path="url(#${id})">`,
    );
    this.clips++;
  }
  fill(): void {
    const style = { fill: this.paint(this.fillStyle), "fill-opacity": this.opacity };
    this.parts.push(element("path", { d: this.path.join(""), ...style }));
  }
  stroke(): void {
    const style = {
      fill: "none",
      stroke: this.paint(this.strokeStyle),
      "stroke-width": this.lineWidth,
      "stroke-opacity": this.opacity,
      "stroke-linecap": this.lineCap === "butt" ? undefined : this.lineCap,
    };
    this.parts.push(element("path", { d: this.path.join(""), ...style }));
  }
  fillRect(x: number, y: number, width: number, height: number): void {
    this.beginPath();
    this.rect(x, y, width, height);
    this.fill();
  }
  strokeRect(x: number, y: number, width: number, height: number): void {
    this.beginPath();
    this.rect(x, y, width, height);
    this.stroke();
  }
  measureText(text: string): TextMetrics {
    widthOf("", 10);
    ruler!.font = this.font;
    return ruler!.measureText(text);
  }
  fillText(text: string, x: number, y: number, most = Infinity): void {
    const [, weight, size, family] = /^(?:(\d+) )?([\d.]+)px (.*)$/.exec(this.font) ?? [];
    const [a, b, c, d] = this.at;
    const turned = b || c || a !== 1 || d !== 1;
    const wide = this.measureText(text).width;
    const [across, down] = this.point(x, y).split(" ");
    const attributes = {
      ...(turned
        ? { transform: `matrix(${[a, b, c, d].map(short).join(" ")} ${across} ${down})` }
        : { x: across, y: down }),
      "font-size": size,
      "font-weight": weight,
      "font-family": family && escaped(family),
      fill: this.paint(this.fillStyle),
      "fill-opacity": this.opacity,
      "text-anchor": ANCHORS[this.textAlign],
      "dominant-baseline": this.textBaseline === "middle" ? "central" : undefined,
      ...(wide > most ? { textLength: most, lengthAdjust: "spacingAndGlyphs" } : {}),
      "unicode-bidi": "isolate",
    };
    this.parts.push(element("text", attributes, escaped(text)));
  }
  createLinearGradient(x1: number, y1: number, x2: number, y2: number): CanvasGradient {
    return new Gradient(x1, y1, x2, y2);
  }
  /** A picture, or the part of one, as an image of its own dots. */
  drawImage(image: CanvasImageSource, ...numbers: number[]): void {
    const source = image as HTMLCanvasElement | ImageBitmap;
    const part = numbers.length === 8 ? numbers.slice(0, 4) : [0, 0, source.width, source.height];
    const [x, y, width, height] = numbers.slice(-4);
    const own = document.createElement("canvas");
    [own.width, own.height] = [Math.max(1, Math.ceil(part[2])), Math.max(1, Math.ceil(part[3]))];
    const [left, top, wide, high] = part;
    own.getContext("2d")!.drawImage(source, left, top, wide, high, 0, 0, own.width, own.height);
    const [across, down] = this.point(x, y).split(" ");
    this.parts.push(pictureOf(own, { x: across, y: down, width, height }));
  }
  private get opacity(): string | undefined {
    return this.globalAlpha < 1 ? this.globalAlpha.toFixed(3) : undefined;
  }
  private paint(style: Pen["fillStyle"]): string {
    if (typeof style === "string") return style;
    const { id, svg } = style as unknown as Gradient;
    this.parts.push(svg);
    return `url(#${id})`;
  }
}

/** The dots of a canvas, enlarged without blur. */
export const pictureOf = (canvas: HTMLCanvasElement, box: Record<string, string | number>) =>
  element("image", {
    ...box,
    preserveAspectRatio: "none",
    "image-rendering": "pixelated",
    href: canvas.toDataURL("image/png"),
  });

/** Colours along a line. */
class Gradient implements CanvasGradient {
  readonly id = `gradient-${ids++}`;
  private readonly stops: string[] = [];
  constructor(
    private readonly x1: number,
    private readonly y1: number,
    private readonly x2: number,
    private readonly y2: number,
  ) {}
  addColorStop(offset: number, colour: string): void {
    this.stops.push(element("stop", { offset, "stop-color": colour }));
  }
  get svg(): string {
    const { id, x1, y1, x2, y2 } = this;
    const attributes = { id, gradientUnits: "userSpaceOnUse", x1, y1, x2, y2 };
    return element("linearGradient", attributes, this.stops.join(""));
  }
}
