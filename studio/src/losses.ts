// The losses of a training along its steps, as the page and its figure draw them.

import { extent } from "d3-array";
import { scaleLinear, scaleLog, scaleSymlog } from "d3-scale";
import { line } from "d3-shape";
import { grouped, significant3 } from "./text";
import type { Training } from "./training";

type Point = [step: number, loss: number];
type Curve = [name: string, points: Point[]];

/** The curves that were logged; else the losses of the snapshots. */
export function curvesOf({ curves, steps, losses }: Training["description"]): Curve[] {
  const logged = Object.entries(curves).filter(([, points]) => points.length);
  if (logged.length) return logged;
  const own = steps
    .map((step, n) => [step, losses[n]] as const)
    .filter((point): point is Point => point[1] !== null);
  return own.length ? [["loss", own]] : [];
}

/** The point logged closest to a step; null: none before it. */
export function loggedAt(points: Point[], step: number): Point | null {
  if (!points.length || step < points[0][0]) return null;
  const away = ([one]: Point) => Math.abs(one - step);
  return points.reduce((best, point) => (away(point) < away(best) ? point : best));
}

/** Where a curve begins and ends. */
export const rangeWords = (points: Point[]) =>
  (points.length > 1 ? `from ${significant3(points[0][1])} to ` : "") +
  significant3(points[points.length - 1][1]);

/** A curve in words: its range, and the loss logged at a step or closest to it. */
export function curveWords([name, points]: Curve, step: number): string {
  const logged = loggedAt(points, step);
  const said = `${name}: ${rangeWords(points)}`;
  if (!logged) return said;
  const [at, loss] = logged;
  return at === step
    ? `${said}, now ${significant3(loss)}`
    : `${said}, nearest logged ${significant3(loss)} at step ${grouped(at)}`;
}

/** Steps on a logarithmic axis: much happens early. */
export const stepScale = (last: number, range: [number, number]) =>
  scaleSymlog()
    .constant(8)
    .domain([0, Math.max(last, 1)])
    .range(range);

/** A number below an axis. */
export interface AxisTick {
  at: number;
  text: string;
  anchor: "start" | "middle" | "end";
}

/** The numbers below an axis of steps. */
export function stepTicks(x: ReturnType<typeof stepScale>, last: number): AxisTick[] {
  const least = 48; // pixels apart
  return [0, 1, 10, 100, 1000, 10000, 100000, 1000000]
    .filter((step) => x(last) - x(step) > least && (step === 0 || x(step) - x(0) > least))
    .concat(last)
    .map((step) => ({
      at: x(step),
      text: step === 0 ? "step 0" : grouped(step),
      anchor: step === 0 ? "start" : step === last ? "end" : "middle",
    }));
}

interface Room {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** Where curves, steps and losses stand between such edges. */
export function lossAxes(curves: Curve[], last: number, { left, right, top, bottom }: Room) {
  const x = stepScale(last, [left, Math.max(right, left + 10)]);
  const losses = curves.flatMap(([, points]) => points.map(([, loss]) => loss));
  // Of a long training there are more than a call takes arguments.
  const [low = 0, high = 0] = extent(losses.filter((loss) => loss > 0));
  const y = (
    low > 0 && high / low > 30
      ? scaleLog().domain([low, high])
      : scaleLinear().domain([Math.min(low, 0), high || 1])
  ).range([bottom, top]);
  const all = losses.length ? y.ticks(3) : [];
  const every = all.length > 4 ? Math.ceil(all.length / 4) : 1;
  const path = line<Point>()
    .defined(([, loss]) => Number.isFinite(y(loss)))
    .x(([step]) => x(step))
    .y(([, loss]) => y(loss));
  return {
    x,
    y,
    ticks: stepTicks(x, last),
    levels: all
      .filter((_, n) => n % every === 0)
      .map((level) => ({
        at: y(level),
        text:
          level >= 0.01 || level === 0 ? String(level) : level.toExponential(0).replace("e-", "e−"),
      })),
    path: (points: Point[]) => path(points) ?? "",
  };
}
