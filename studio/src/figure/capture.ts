// A part of the page as SVG: its boxes, its text as text, its drawings and canvases.

import { element, escaped, paintingOf, pictureOf, SvgPen } from "./pen";

/** Elements that are not exported: see also .as-figure in style/media.css. */
const LEFT_OUT = ".unseen, .keys, .quiet, select, input, dialog";
/** Properties that a drawing's elements take from style sheets. */
const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-linecap",
  "stroke-dasharray",
  "opacity",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
  "paint-order",
];

interface Place {
  x: number;
  y: number;
}

/** An element and all in it, seen from a place of the page. */
export function captured(of: Element, from: Place): string {
  const style = getComputedStyle(of);
  if (of.matches(LEFT_OUT) || !of.checkVisibility({ visibilityProperty: true })) return "";
  const opacity = Number(style.opacity);
  if (!opacity) return "";
  const box = of.getBoundingClientRect();
  const at = { x: box.left - from.x, y: box.top - from.y };
  let content: string;
  if (of instanceof HTMLCanvasElement) content = canvasOf(of, box, at);
  else if (of instanceof SVGSVGElement) content = drawingOf(of, box, at);
  else {
    const inside = [...of.childNodes].map((child) =>
      child instanceof Element
        ? captured(child, from)
        : child instanceof Text
          ? wordsOf(child, style, from)
          : "",
    );
    content = boxOf(style, box, at) + cutOff(of, style, box, at, inside.join(""));
  }
  return opacity < 1 && content ? element("g", { opacity }, content) : content;
}

/** The painting of a canvas, or its pixels. */
function canvasOf(canvas: HTMLCanvasElement, { width, height }: DOMRect, at: Place): string {
  const painted = paintingOf(canvas);
  if (!painted) return width && height ? pictureOf(canvas, { ...at, width, height }) : "";
  const pen = new SvgPen();
  painted.paint(pen);
  const scale = painted.width ? width / painted.width : 1;
  const transform = `translate(${at.x.toFixed(2)} ${at.y.toFixed(2)}) scale(${scale.toFixed(4)})`;
  return element("g", { transform }, pen.svg);
}

/** A drawing of the page with its styles in it. */
function drawingOf(svg: SVGSVGElement, { width, height }: DOMRect, at: Place): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const [here, there] = [svg, copy].map((one) => [...one.querySelectorAll("*")]);
  here.forEach((one, n) => {
    const style = getComputedStyle(one);
    for (const name of STYLES) there[n].setAttribute(name, style.getPropertyValue(name));
    for (const name of [...there[n].getAttributeNames()])
      if (/^(class|style|id|role|tabindex|aria-|on)/.test(name)) there[n].removeAttribute(name);
  });
  const inner = [...copy.childNodes]
    .map((node) => (node instanceof Element ? new XMLSerializer().serializeToString(node) : ""))
    .join("")
    .replaceAll(' xmlns="http://www.w3.org/2000/svg"', "");
  const viewBox = svg.getAttribute("viewBox") ?? `0 0 ${width} ${height}`;
  const aspect = svg.getAttribute("preserveAspectRatio") ?? undefined;
  return element(
    "svg",
    { ...at, width, height, viewBox, preserveAspectRatio: aspect, overflow: "visible" },
    inner,
  );
}

const shown = (colour: string) => !/^rgba\(.*, 0\)$|^transparent$|\/ 0\)$/.test(colour);

/** The ground and the lines of a box. */
function boxOf(style: CSSStyleDeclaration, box: DOMRect, { x, y }: Place): string {
  const { width, height } = box;
  if (!width || !height) return "";
  const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, width / 2, height / 2);
  const parts: string[] = [];
  if (shown(style.backgroundColor))
    parts.push(
      element("rect", {
        x,
        y,
        width,
        height,
        rx: radius || undefined,
        fill: style.backgroundColor,
      }),
    );
  const sides = (["Top", "Right", "Bottom", "Left"] as const).map((side) => ({
    wide: parseFloat(style[`border${side}Width`]) || 0,
    colour: style[`border${side}Color`],
    line: style[`border${side}Style`],
  }));
  const seen = sides.filter(({ wide, colour, line }) => wide && line !== "none" && shown(colour));
  if (seen.length === 4)
    parts.push(
      element("rect", {
        x: x + 0.5,
        y: y + 0.5,
        width: width - 1,
        height: height - 1,
        rx: radius || undefined,
        fill: "none",
        stroke: seen[0].colour,
        "stroke-width": seen[0].wide,
      }),
    );
  else
    sides.forEach((side, n) => {
      if (!seen.includes(side)) return;
      const half = side.wide / 2;
      const ends = [
        { x1: x, y1: y + half, x2: x + width, y2: y + half },
        { x1: x + width - half, y1: y, x2: x + width - half, y2: y + height },
        { x1: x, y1: y + height - half, x2: x + width, y2: y + height - half },
        { x1: x + half, y1: y, x2: x + half, y2: y + height },
      ];
      parts.push(element("line", { ...ends[n], stroke: side.colour, "stroke-width": side.wide }));
    });
  return parts.join("");
}

/** The content of a box, clipped to it where it overflows. */
function cutOff(
  of: Element,
  style: CSSStyleDeclaration,
  { width, height }: DOMRect,
  { x, y }: Place,
  inside: string,
): string {
  const fits = of.scrollWidth <= of.clientWidth + 1 && of.scrollHeight <= of.clientHeight + 1;
  if (!inside || fits || style.overflowX === "visible" || !of.clientWidth) return inside;
  const viewBox = `${x.toFixed(2)} ${y.toFixed(2)} ${width.toFixed(2)} ${height.toFixed(2)}`;
  return element("svg", { x, y, width, height, viewBox }, inside);
}

/** The words of a text, line by line, where they stand. */
function wordsOf(text: Text, style: CSSStyleDeclaration, from: Place): string {
  const content = text.data;
  if (!content.trim()) return "";
  const range = document.createRange();
  const lines: { said: string; box: DOMRect }[] = [];
  for (const { 0: word, index } of content.matchAll(/\S+\s*/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.trimEnd().length);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    const before = lines.at(-1);
    if (before && Math.abs(before.box.top - box.top) < 2) before.said += word;
    else lines.push({ said: word, box });
  }
  const upper = style.textTransform === "uppercase";
  return lines
    .map(({ said, box }) =>
      element(
        "text",
        {
          x: box.left - from.x,
          y: box.top + box.height / 2 - from.y,
          "dominant-baseline": "central",
          "font-size": parseFloat(style.fontSize),
          "font-weight": style.fontWeight === "400" ? undefined : style.fontWeight,
          "font-family": style.fontFamily.includes("mono") ? "monospace" : undefined,
          fill: style.color,
          "unicode-bidi": "isolate",
          "xml:space": "preserve",
        },
        escaped((upper ? said.toUpperCase() : said).trimEnd().replace(/\s+/g, " ")),
      ),
    )
    .join("");
}
