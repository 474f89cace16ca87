// Making elements. Text is only ever set as text, so that a token is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

function make(name, properties = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "text", "rect", "g", "title"].includes(name);
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [rule, to] of Object.entries(value)) element.style.setProperty(rule, to);
    else if (key in element && !svg && !key.startsWith("aria")) element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);
const fill = (parent, ...children) => parent.replaceChildren(...children.flat().filter(Boolean));

function tokenSpan(token, kind = "") {
  return make("bdi", { className: `token ${kind}`, title: visible(token, 300) }, visible(token));
}

const three = (number) => (Math.abs(number) >= 100 ? number.toFixed(0) : number.toPrecision(3));
const minus = (number, digits) => {
  const text = Math.abs(number).toFixed(digits);
  return number < 0 && Number(text) ? "−" + text : text;
};
const grouped = (number) => number.toLocaleString("en");

const KINDS = {
  encoder: ["Encoder", "the source looks at itself", "the tokens look at each other"],
  decoder: ["Decoder", "the target looks back at itself", "each token looks at those before it"],
  cross: ["Cross", "the target looks at the source", ""],
};
const layerName = (layer) => `${KINDS[layer.kind]?.[0] ?? layer.kind} layer ${layer.index}`;

function rampLegend(caption, scale = "square-root", table = colours().weight, ends = ["0", "1"]) {
  const canvas = make("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  paintRamp(canvas, table);
  const middle = ends.length > 2 ? ends.slice(1, -1) : [caption];
  return make("div", { className: "ramp" }, canvas,
    make("span", {}, ...[ends[0], ...middle, ends[ends.length - 1]].map((text) => make("span", {}, text))));
}

function paintRamp(canvas, table) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(256, 1);
  for (let n = 0; n < 256; n++) image.data.set([table[3 * n], table[3 * n + 1], table[3 * n + 2], 255], 4 * n);
  context.putImageData(image, 0, 0);
}

const hint = (...pairs) => make("p", { className: "keys" },
  pairs.map(([key, what]) => make("span", {}, make("kbd", {}, key), " " + what)));
