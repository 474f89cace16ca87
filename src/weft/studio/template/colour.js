// Ramps with lightness linear in the value (OKLCH), the same as those of the printed pictures.

const STOPS = {
  light: {
    weight: [[0.995, 0.004, 90], [0.86, 0.1, 72], [0.725, 0.155, 48], [0.59, 0.18, 22], [0.455, 0.165, -8], [0.32, 0.12, -40], [0.185, 0.055, -72]],
    difference: [[0.36, 0.13, 262], [0.57, 0.145, 255], [0.78, 0.085, 250], [0.985, 0.003, 90], [0.78, 0.1, 12], [0.57, 0.18, 8], [0.36, 0.14, 2]],
    heads: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#5a4fcf", "#56a0d3", "#a33b20", "#3f7d20", "#8e2f7c", "#6b7280", "#b0851e"],
  },
  dark: {
    weight: [[0.17, 0.012, -80], [0.305, 0.1, -62], [0.44, 0.155, -38], [0.575, 0.18, -8], [0.71, 0.165, 32], [0.845, 0.125, 72], [0.975, 0.055, 100]],
    difference: [[0.88, 0.075, 240], [0.65, 0.14, 252], [0.42, 0.11, 260], [0.2, 0.008, 270], [0.42, 0.13, 6], [0.65, 0.18, 10], [0.88, 0.08, 16]],
    heads: ["#56b4e9", "#ff8c42", "#35c99a", "#e8a0c8", "#f0e442", "#9d94ff", "#2f8fd0", "#e2725b", "#9bd267", "#c86fc0", "#b3bac5", "#d8b45a"],
  },
};

function ramp(stops) {
  const table = new Uint8ClampedArray(256 * 3);
  for (let n = 0; n < 256; n++) {
    const place = (n / 255) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
    const mix = (f) => f(stops[low]) + (f(stops[low + 1]) - f(stops[low])) * (place - low);
    const L = mix((s) => s[0]);
    const a = mix((s) => s[1] * Math.cos((s[2] * Math.PI) / 180));
    const b = mix((s) => s[1] * Math.sin((s[2] * Math.PI) / 180));
    const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
    [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ].forEach((value, channel) => {
      const v = Math.min(Math.max(value, 0), 1);
      table[3 * n + channel] = 255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055);
    });
  }
  return table;
}

const COLOURS = {};
for (const [theme, parts] of Object.entries(STOPS))
  COLOURS[theme] = { weight: ramp(parts.weight), difference: ramp(parts.difference), heads: parts.heads };

const theme = () => document.documentElement.dataset.theme;
const colours = () => COLOURS[theme()];
const headColour = (head) => colours().heads[head % 12];

const SCALES = {
  "square-root": { to: Math.sqrt, back: (u) => u * u },
  linear: { to: (w) => w, back: (u) => u },
  logarithmic: { to: (w) => (w <= 1e-4 ? 0 : 1 + Math.log10(w) / 4), back: (u) => 10 ** (4 * u - 4) },
};

// Numbers onto a canvas, one pixel a cell. `place` takes a number to 0..1.
function paint(canvas, numbers, rows, columns, place, table = colours().weight) {
  const [high, wide, shown] = binned(numbers, rows, columns);
  canvas.width = Math.max(wide, 1);
  canvas.height = Math.max(high, 1);
  if (!shown.length) return;
  const context = canvas.getContext("2d");
  const image = context.createImageData(wide, high);
  for (let n = 0; n < shown.length; n++) {
    const at = 3 * Math.round(255 * Math.min(Math.max(place(shown[n]), 0), 1));
    image.data[4 * n] = table[at];
    image.data[4 * n + 1] = table[at + 1];
    image.data[4 * n + 2] = table[at + 2];
    image.data[4 * n + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

// A large matrix in at most 128 x 128 bins: the mass that a row of a bin has in it, on average.
function binned(numbers, rows, columns, most = 128) {
  if (rows <= most && columns <= most) return [rows, columns, numbers];
  const high = Math.min(rows, most), wide = Math.min(columns, most);
  const bins = new Float32Array(high * wide), members = new Float32Array(high);
  for (let i = 0; i < rows; i++) {
    const row = Math.floor((i * high) / rows);
    members[row]++;
    for (let j = 0; j < columns; j++)
      bins[row * wide + Math.floor((j * wide) / columns)] += numbers[i * columns + j];
  }
  for (let n = 0; n < bins.length; n++) bins[n] /= members[Math.floor(n / wide)];
  return [high, wide, bins];
}
