// A graph of tokens as a figure.

import { INKS, type Theme } from "../colour";
import type { Mark } from "../graphDrawing";
import type { Layout, Placed } from "../graphLayout";
import type { Example } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { visible } from "../text";
import { smallPrint } from "./print";
import { EDGE, element, figure, fitted, fixed1, SMALLEST, text } from "./svg";

interface Shown {
  example: Example;
  layout: Layout;
  marks: Mark[];
  radius: (node: Placed) => number;
  title: string;
  /** What is drawn, in words. */
  note: string;
  labelWide: number;
}

export function graphFigure(studio: Studio, shown: Shown, theme: Theme, wide: number): Figure {
  const { layout, marks, radius, labelWide } = shown;
  const ink = INKS[theme];
  const parts: string[] = [];
  const gradients: string[] = [];
  const edges: string[] = [];
  marks.forEach(({ curve, arrow, width, opacity, from, to }, n) => {
    const loop = from.id === to.id;
    const stroke = arrow ? `url(#edge${n})` : loop ? ink.key : ink.faint;
    if (arrow) {
      const stops = [ink.query, ink.key].map((colour, offset) =>
        element("stop", { offset: String(offset), "stop-color": colour }),
      );
      gradients.push(
        element(
          "linearGradient",
          {
            id: `edge${n}`,
            gradientUnits: "userSpaceOnUse",
            x1: curve[0],
            y1: curve[1],
            x2: curve[6],
            y2: curve[7],
          },
          stops.join(""),
        ),
      );
    }
    const [x1, y1, ...bend] = curve.map(fixed1);
    edges.push(
      element("path", {
        d: `M${x1} ${y1}C${bend.join(" ")}`,
        stroke,
        fill: "none",
        "stroke-width": width.toFixed(2),
        "stroke-opacity": opacity.toFixed(3),
      }),
    );
    if (arrow)
      edges.push(
        element("path", {
          d: `M${arrow.map(({ x, y }) => `${fixed1(x)} ${fixed1(y)}`).join("L")}Z`,
          fill: ink.key,
          "fill-opacity": opacity.toFixed(3),
        }),
      );
  });
  parts.push(element("defs", {}, gradients.join("")), ...edges);
  const size = Math.max(SMALLEST, Math.min(12, layout.space * 0.9));
  for (const node of layout.nodes) {
    parts.push(
      element("circle", { cx: node.x, cy: node.y, r: radius(node), fill: ink.key }),
      text(node.label.x, node.label.y, fitted(visible(node.token, 16), size, labelWide), {
        size,
        anchor: node.anchor,
        turn: node.turn,
        middle: true,
      }),
    );
  }
  // Laid out for this width already, but for letters that need more room than it has.
  const scale = Math.min(1, (wide - 2 * EDGE) / layout.width);
  const left = fixed1((wide - layout.width * scale) / 2);
  const moved = `translate(${left} 0) scale(${scale.toFixed(4)})`;
  return figure({
    width: wide,
    height: layout.height * scale,
    theme,
    title: shown.title,
    note: shown.note,
    small: smallPrint(studio, shown.example),
    parts: [element("g", { transform: moved }, parts.join(""))],
    of: shown.title,
  });
}
