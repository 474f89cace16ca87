// Mouse and fingers on the matrix: one drags, with inertia; two pinch; one that stays is a click.

export interface Place {
  x: number;
  y: number;
}

export interface Moves {
  /** By so many pixels. */
  drag(dx: number, dy: number): void;
  /** Moves the content from one place to another, and scales it by a factor. */
  pinch(factor: number, from: Place, to: Place): void;
  click(event: PointerEvent): void;
}

/** Fingers closer than this, in pixels, do not say how large a thing is. */
const CLOSE = 24;
/** A click may move by so many pixels. */
const STILL = 3;

const placeOf = (event: PointerEvent): Place => ({ x: event.clientX, y: event.clientY });

export class Gestures {
  private readonly fingers = new Map<number, Place>();
  private moved = 0;
  private last = 0;
  private speed = { x: 0, y: 0 };
  private glide = 0;

  constructor(private readonly moves: Moves) {}

  /** Whether a button or a finger holds the matrix; else a pointer only passes over it. */
  get held(): boolean {
    return this.fingers.size > 0;
  }

  down(event: PointerEvent): void {
    if (event.button || this.fingers.size === 2) return;
    this.stop();
    (event.currentTarget as Element).setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, placeOf(event));
    // A pinch must not end as a click.
    this.moved = this.fingers.size === 1 ? 0 : Infinity;
    this.last = event.timeStamp;
    this.speed = { x: 0, y: 0 };
  }

  over(event: PointerEvent): void {
    const before = this.fingers.get(event.pointerId);
    if (!before) return;
    const now = placeOf(event);
    this.fingers.set(event.pointerId, now);
    const other = [...this.fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const apart = (one: Place) => Math.max(Math.hypot(one.x - other.x, one.y - other.y), CLOSE);
      const between = (one: Place) => ({ x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 });
      this.moves.pinch(apart(now) / apart(before), between(before), between(now));
      return;
    }
    const dx = now.x - before.x,
      dy = now.y - before.y;
    const passed = Math.max(event.timeStamp - this.last, 1);
    this.last = event.timeStamp;
    this.speed = {
      x: 0.7 * (dx / passed) + 0.3 * this.speed.x,
      y: 0.7 * (dy / passed) + 0.3 * this.speed.y,
    };
    this.moved += Math.abs(dx) + Math.abs(dy);
    if (this.moved > STILL) this.moves.drag(dx, dy);
  }

  up(event: PointerEvent): void {
    if (!this.fingers.delete(event.pointerId)) return;
    // The finger that stays goes on as a drag.
    if (this.fingers.size) this.speed = { x: 0, y: 0 };
    else if (this.moved <= STILL) this.moves.click(event);
    else if (event.timeStamp - this.last < 60 && Math.hypot(this.speed.x, this.speed.y) > 0.2)
      this.slide();
  }

  cancel(event: PointerEvent): void {
    this.fingers.delete(event.pointerId);
  }

  /** Ends a glide. */
  stop(): void {
    cancelAnimationFrame(this.glide);
  }

  private slide(): void {
    if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    let { x, y } = this.speed,
      last = performance.now();
    const slide = (now: number) => {
      const passed = now - last;
      last = now;
      this.moves.drag(x * passed, y * passed);
      const slower = 0.995 ** passed;
      [x, y] = [x * slower, y * slower];
      if (Math.hypot(x, y) > 0.03) this.glide = requestAnimationFrame(slide);
    };
    this.glide = requestAnimationFrame(slide);
  }
}
