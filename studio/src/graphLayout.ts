// Where the tokens of a graph stand, in reading order on a circle or on a line, and how edges run.

import type { Node } from "./graph";
import { visible } from "./text";

export interface Point {
  x: number;
  y: number;
}

export interface Placed extends Node, Point {
  /** How far its label is turned, in degrees, and which end of the label is at the token. */
  turn: number;
  anchor: "start" | "middle" | "end";
  label: Point;
}

export interface Layout {
  form: "circle" | "line";
  width: number;
  height: number;
  /** Pixels between two neighbours. */
  space: number;
  nodes: Placed[];
  /** The middle of the circle; of a line nothing. */
  middle: Point | null;
}

/** Pixels between two tokens from which their labels can be read. */
const LEGIBLE = 12;
const ROW = 17;
/** Characters of a label that stands upright beside its token on a circle, and pixels of each. */
const SHORT = 3,
  CHARACTER = 8;
/** Empty places of a circle between the last token and the first, and between two sequences. */
const GAP = 2;

/** Places tokens in a room. wanted: "" a circle where its labels can be read in the room. */
export function layoutOf(
  nodes: Node[],
  room: { width: number; height: number },
  labelWide: number,
  wanted: "" | "circle" | "line",
): Layout {
  const two = nodes.some((node) => node.side === "key") && nodes[0]?.side === "query";
  const places = nodes.length + GAP * (two ? 2 : 1);
  const most = Math.min(room.width, room.height) / 2 - labelWide - 20;
  const fits = (2 * Math.PI * most) / places >= LEGIBLE;
  if (wanted === "line" || (!wanted && !fits)) return onLine(nodes, room, labelWide);
  const radius = Math.max(most, (places * LEGIBLE) / (2 * Math.PI), 40);
  const side = 2 * (radius + labelWide + 20);
  const width = Math.max(room.width, side),
    height = Math.max(Math.min(room.height, side), side);
  const middle = { x: width / 2, y: height / 2 };
  const space = (2 * Math.PI * radius) / places;
  let skipped = GAP / 2;
  const placed = nodes.map((node, n): Placed => {
    if (two && n > 0 && node.side === "key" && nodes[n - 1].side === "query") skipped += GAP;
    const angle = (2 * Math.PI * (n + skipped)) / places - Math.PI / 2;
    const at = (far: number) => ({
      x: middle.x + far * Math.cos(angle),
      y: middle.y + far * Math.sin(angle),
    });
    const long = [...visible(node.token)].length;
    // A single letter that is turned is another: d is p. Where short labels have no room beside
    // each other they are turned as the others are.
    if (long <= SHORT && space >= CHARACTER * long) {
      const aside = (CHARACTER / 2) * Math.max(long - 1, 0) * Math.abs(Math.cos(angle));
      return { ...node, ...at(radius), label: at(radius + 21 + aside), turn: 0, anchor: "middle" };
    }
    const left = Math.cos(angle) < -1e-9;
    return {
      ...node,
      ...at(radius),
      label: at(radius + 14),
      turn: (angle * 180) / Math.PI + (left ? 180 : 0),
      anchor: left ? "end" : "start",
    };
  });
  return {
    form: "circle",
    width,
    height,
    space,
    nodes: placed,
    middle,
  };
}

function onLine(nodes: Node[], room: { width: number; height: number }, labelWide: number): Layout {
  const x = labelWide + 26;
  let y = 20;
  const placed = nodes.map((node, n): Placed => {
    if (n > 0 && node.side === "key" && nodes[n - 1].side === "query") y += ROW;
    y += n ? ROW : 0;
    return { ...node, x, y, label: { x: x - 14, y }, turn: 0, anchor: "end" };
  });
  return {
    form: "line",
    width: room.width,
    height: y + 20,
    space: ROW,
    nodes: placed,
    middle: null,
  };
}

/** A cubic curve from one token to another: its ends and the two points that bend it. */
export type Curve = [
  x1: number, y1: number, a: number, b: number, c: number, d: number, x2: number, y2: number,
]; // prettier-ignore

/** How an edge runs: through the circle, or right of the line; a loop back to where it began. */
export function curveOf(layout: Layout, from: Placed, to: Placed): Curve {
  const { middle } = layout;
  if (middle) {
    const towards = (at: Point, how: number) => ({
      x: at.x + (middle.x - at.x) * how,
      y: at.y + (middle.y - at.y) * how,
    });
    if (from.id === to.id) {
      const long = Math.min(40, Math.max(20, layout.space * 1.6));
      const [dx, dy] = [middle.x - from.x, middle.y - from.y];
      const unit = long / Math.max(Math.hypot(dx, dy), 1);
      const [inX, inY] = [dx * unit, dy * unit];
      const [sideX, sideY] = [-inY * 0.55, inX * 0.55];
      const { x, y } = from;
      return [
        x, y, x + inX * 1.2 + sideX, y + inY * 1.2 + sideY,
        x + inX * 1.2 - sideX, y + inY * 1.2 - sideY, x, y,
      ]; // prettier-ignore
    }
    // The nearer two tokens, the nearer to the rim runs their edge; the two ways stand apart.
    const radius = Math.hypot(from.x - middle.x, from.y - middle.y);
    const apart = Math.hypot(to.x - from.x, to.y - from.y) / Math.max(2 * radius, 1);
    const bend = 0.1 + 0.55 * Math.sqrt(apart);
    const [a, b] = [towards(from, bend), towards(to, bend)];
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const aside = 0.06;
    return [
      from.x, from.y, a.x - dy * aside, a.y + dx * aside,
      b.x - dy * aside, b.y + dx * aside, to.x, to.y,
    ]; // prettier-ignore
  }
  const room = Math.max(60, layout.width - from.x - 24);
  if (from.id === to.id) {
    const { x, y } = from;
    return [x, y, x + 26, y - 13, x + 26, y + 13, x, y];
  }
  const far = Math.abs(to.y - from.y) / Math.max(layout.height - 40, 1);
  // A cubic comes three quarters as far as the points that bend it. Ahead is nearer than back.
  const reach = (4 / 3) * Math.min(room, 24 + room * Math.sqrt(far)) * (to.y > from.y ? 0.8 : 1);
  return [from.x, from.y, from.x + reach, from.y, to.x + reach, to.y, to.x, to.y];
}

/** A point of a curve, 0 to 1. */
export function pointOf(curve: Curve, t: number): Point {
  const s = 1 - t;
  const [k0, k1, k2, k3] = [s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t];
  return {
    x: k0 * curve[0] + k1 * curve[2] + k2 * curve[4] + k3 * curve[6],
    y: k0 * curve[1] + k1 * curve[3] + k2 * curve[5] + k3 * curve[7],
  };
}

/** The curve that a point lies on: the nearest within some pixels, or none. */
export function nearestCurve(curves: Curve[], at: Point, within: number): number {
  let [best, least] = [-1, within ** 2];
  curves.forEach((curve, n) => {
    let before = pointOf(curve, 0);
    for (let step = 1; step <= 16; step++) {
      const after = pointOf(curve, step / 16);
      const away = awayFrom(at, before, after);
      if (away < least) [best, least] = [n, away];
      before = after;
    }
  });
  return best;
}

/** The squared distance of a point from a straight piece. */
function awayFrom(at: Point, from: Point, to: Point): number {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const long = dx * dx + dy * dy;
  const along = long ? ((at.x - from.x) * dx + (at.y - from.y) * dy) / long : 0;
  const t = Math.min(1, Math.max(0, along));
  return (at.x - from.x - t * dx) ** 2 + (at.y - from.y - t * dy) ** 2;
}

/** A head of an arrow at the end of a curve, before a token of some radius: three corners. */
export function arrowOf(curve: Curve, radius: number, size: number): [Point, Point, Point] {
  const end = { x: curve[6], y: curve[7] };
  // Where the curve comes within the radius.
  let from = pointOf(curve, 0.5);
  for (let t = 1; t > 0.5; t -= 0.02) {
    const at = pointOf(curve, t);
    if (Math.hypot(at.x - end.x, at.y - end.y) > radius + size) {
      from = at;
      break;
    }
  }
  const long = Math.max(Math.hypot(end.x - from.x, end.y - from.y), 1e-6);
  const [ux, uy] = [(end.x - from.x) / long, (end.y - from.y) / long];
  const tip = { x: end.x - ux * radius, y: end.y - uy * radius };
  const back = { x: tip.x - ux * size, y: tip.y - uy * size };
  const half = size * 0.45;
  return [
    tip,
    { x: back.x - uy * half, y: back.y + ux * half },
    { x: back.x + uy * half, y: back.y - ux * half },
  ];
}
