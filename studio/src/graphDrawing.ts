// The edges of a graph as marks: how wide, how strong, in which colours; and how they are painted.

import { INKS, type Theme } from "./colour";
import type { Pen } from "./figure/pen";
import { endsOf, type GraphEdge } from "./graph";
import { arrowOf, curveOf, type Curve, type Layout, type Placed, type Point } from "./graphLayout";
import type { Layer } from "./description";
import { breadth } from "./threads";

export interface Mark {
  edge: GraphEdge;
  curve: Curve;
  from: Placed;
  to: Placed;
  width: number;
  opacity: number;
  /** The head of the arrow; null: the edge is a loop. */
  arrow: [Point, Point, Point] | null;
}

/** How far a token's dot reaches: its area is what it receives. */
export function radiusOf(received: number, most: number, space: number): number {
  const largest = Math.min(13, Math.max(5, space * 0.62));
  return 1.8 + (largest - 1.8) * Math.sqrt(most > 0 ? Math.min(received / most, 1) : 0);
}

/** The marks of edges whose ends are drawn, weakest first: none hides a stronger one. */
export function marksOf(
  layer: Layer,
  layout: Layout,
  edges: GraphEdge[],
  radius: (node: Placed) => number,
): Mark[] {
  const places = new Map(layout.nodes.map((node) => [node.id, node]));
  const found: Mark[] = [];
  for (const edge of edges) {
    const [from, to] = endsOf(layer, edge).map((id) => places.get(id));
    if (!from || !to) continue;
    const curve = curveOf(layout, from, to);
    const share = edge.weight;
    const width = breadth(Math.min(share, 1));
    const opacity = 0.22 + 0.68 * Math.min(1, Math.sqrt(share));
    const arrow = from.id !== to.id ? arrowOf(curve, radius(to) + 1, 4 + 1.3 * width) : null;
    found.push({ edge, curve, from, to, width, opacity, arrow });
  }
  return found.reverse();
}

/** Paints marks; strong: the one under the pointer, above the others. */
export function paintMarks(pen: Pen, marks: Mark[], theme: Theme, strong: Mark | null): void {
  pen.lineCap = "round";
  const ink = INKS[theme];
  for (const mark of strong ? [...marks, strong] : marks) {
    const { curve, arrow } = mark;
    pen.globalAlpha = mark === strong ? 1 : mark.opacity;
    pen.lineWidth = mark.width + (mark === strong ? 1.2 : 0);
    if (arrow) {
      const colours = pen.createLinearGradient(curve[0], curve[1], curve[6], curve[7]);
      colours.addColorStop(0, ink.query);
      colours.addColorStop(1, ink.key);
      pen.strokeStyle = colours;
    } else pen.strokeStyle = mark.from.id === mark.to.id ? ink.key : ink.faint;
    pen.beginPath();
    pen.moveTo(curve[0], curve[1]);
    pen.bezierCurveTo(curve[2], curve[3], curve[4], curve[5], curve[6], curve[7]);
    pen.stroke();
    if (!arrow) continue;
    pen.fillStyle = ink.key;
    pen.beginPath();
    arrow.forEach((at) => pen.lineTo(at.x, at.y));
    pen.fill();
  }
  pen.globalAlpha = 1;
}
