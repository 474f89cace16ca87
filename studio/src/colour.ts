// Ramps with lightness linear in the value (OKLCH), the same as those of the printed pictures in
// src/headloom/studio/pictures/palette.py.

export type Theme = "light" | "dark";
type Stops = [lightness: number, chroma: number, hue: number][];

const STOPS: Record<Theme, { weight: Stops; difference: Stops }> = {
  light: {
    weight: [
      [0.995, 0.004, 90],
      [0.86, 0.1, 72],
      [0.725, 0.155, 48],
      [0.59, 0.18, 22],
      [0.455, 0.165, -8],
      [0.32, 0.12, -40],
      [0.185, 0.055, -72],
    ],
    difference: [
      [0.36, 0.13, 262],
      [0.57, 0.145, 255],
      [0.78, 0.085, 250],
      [0.985, 0.003, 90],
      [0.78, 0.1, 12],
      [0.57, 0.18, 8],
      [0.36, 0.14, 2],
    ],
  },
  dark: {
    weight: [
      [0.17, 0.012, -80],
      [0.305, 0.1, -62],
      [0.44, 0.155, -38],
      [0.575, 0.18, -8],
      [0.71, 0.165, 32],
      [0.845, 0.125, 72],
      [0.975, 0.055, 100],
    ],
    difference: [
      [0.88, 0.075, 240],
      [0.65, 0.14, 252],
      [0.42, 0.11, 260],
      [0.2, 0.008, 270],
      [0.42, 0.13, 6],
      [0.65, 0.18, 10],
      [0.88, 0.08, 16],
    ],
  },
};

/** Twelve colours, safe for colour-blind readers; a head's number is always beside its colour. */
const HEADS: Record<Theme, string[]> = {
  light: [
    "#0a73ab",
    "#e0691f",
    "#29a06f",
    "#c470d0",
    "#826604",
    "#5a4fcf",
    "#555c60",
    "#902d0c",
    "#32969c",
    "#7d227a",
    "#6e7272",
    "#464646",
  ],
  dark: [
    "#51aacd",
    "#ffc79f",
    "#41c18f",
    "#c17699",
    "#f2e644",
    "#7267da",
    "#3292d1",
    "#dc6c57",
    "#a4d55a",
    "#e88bfa",
    "#b3bac5",
    "#c6a44d",
  ],
};

export const INKS = {
  light: {
    ground: "#fbfaf6",
    card: "#ffffff",
    ink: "#1c2126",
    faint: "#5f6670",
    line: "#e2dfd6",
    track: "#eceae3",
    query: "#0a716e",
    key: "#945407",
    seen: "#f0a83f",
    none: "#a9b0b8",
  },
  dark: {
    ground: "#0f1216",
    card: "#161a20",
    ink: "#e9e7e2",
    faint: "#98a0ab",
    line: "#272d35",
    track: "#232932",
    query: "#5cc8c2",
    key: "#f2b05e",
    seen: "#8a5513",
    none: "#6b747f",
  },
} as const;

/** 256 colours, [red, green, blue, alpha] as one 32-bit number each, for an image's pixels. */
function ramp(stops: Stops): Uint32Array {
  const table = new Uint32Array(256);
  for (let n = 0; n < 256; n++) {
    const place = (n / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    const mix = (of: (stop: Stops[0]) => number) =>
      of(stops[low]) + (of(stops[low + 1]) - of(stops[low])) * (place - low);
    const L = mix((s) => s[0]);
    const a = mix((s) => s[1] * Math.cos((s[2] * Math.PI) / 180));
    const b = mix((s) => s[1] * Math.sin((s[2] * Math.PI) / 180));
    const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
    const [red, green, blue] = [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ].map((value) => {
      const v = Math.min(Math.max(value, 0), 1);
      return Math.round(255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055));
    });
    table[n] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }
  return table;
}

export const RAMPS = {
  light: { weight: ramp(STOPS.light.weight), difference: ramp(STOPS.light.difference) },
  dark: { weight: ramp(STOPS.dark.weight), difference: ramp(STOPS.dark.difference) },
};

/** The colour of NaN, on no ramp, as a pixel. */
export function nonePixel(theme: Theme): number {
  const { none } = INKS[theme];
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(none.slice(at, at + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

export const headColour = (theme: Theme, head: number) => HEADS[theme][head % 12];

export function rampColour(
  theme: Theme,
  value: number,
  of: "weight" | "difference" = "weight",
): string {
  const pixel = RAMPS[theme][of][Math.round(255 * Math.min(Math.max(value, 0), 1))];
  return `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
}

/** Functions from a weight of 0 to 1 to a place on the ramp. */
export const SCALES = {
  root: { name: "square root", to: Math.sqrt, ticks: [0, 0.04, 0.25, 0.5, 1] },
  linear: { name: "linear", to: (w: number) => w, ticks: [0, 0.25, 0.5, 0.75, 1] },
  log: {
    name: "logarithmic",
    to: (w: number) => (w <= 1e-6 ? 0 : 1 + Math.log10(w) / 6),
    ticks: [1e-6, 1e-4, 1e-2, 1],
  },
};

/** A scale in words. */
export const scaleWords = (name: keyof typeof SCALES) =>
  `${SCALES[name].name.replace(" ", "-")} scale`;

/** The numbers below a ramp: position, 0 to 1, and text. */
export type Ticks = [at: number, said: string][];

/** Ticks of the scale of weights. */
export const weightTicks = (name: keyof typeof SCALES): Ticks =>
  SCALES[name].ticks.map((weight) => [
    name === "log" ? 1 + Math.log10(weight) / 6 : SCALES[name].to(weight),
    weight === 0 || weight >= 0.01 ? String(weight) : weight.toExponential(0).replace("e-", "e−"),
  ]);

/** Ticks of a square-root scale up to the largest weight. */
export const rootTicks = (largest: number, said: (weight: number) => string): Ticks => [
  [0, "0"],
  [0.5, said(largest / 4)],
  [1, said(largest)],
];

/** Shades of 0 to 255 onto a canvas, one pixel a cell. */
export function paintShades(
  canvas: HTMLCanvasElement,
  shades: Uint8Array,
  rows: number,
  columns: number,
  table: Uint32Array,
): void {
  canvas.width = Math.max(columns, 1);
  canvas.height = Math.max(rows, 1);
  const context = canvas.getContext("2d");
  if (!context || !rows || !columns) return;
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let n = 0; n < pixels.length; n++) pixels[n] = table[shades[n]];
  context.putImageData(image, 0, 0);
}
