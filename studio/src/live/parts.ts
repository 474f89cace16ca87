// The parts of a page that is a folder: scripts, since a page opened from a disk may read nothing
// else. Each hands over some pieces.

import type { Packed } from "./engine";
import { trustedUrl } from "./trusted";

type Pieces = Record<string, Packed>;

/** The pieces of each part, one part after the other, so that only one is in memory. */
export async function* partsOf(count: number): AsyncGenerator<Pieces> {
  for (let n = 0; n < count; n++) {
    let pieces: Pieces | null = null;
    Object.assign(window, { headloomPart: (some: Pieces) => (pieces = some) });
    const script = document.createElement("script");
    await new Promise((done) => {
      script.onload = script.onerror = done;
      script.src = trustedUrl(`parts/${n}.js`);
      document.head.append(script);
    });
    script.remove();
    if (!pieces) throw new Error(`parts/${n}.js is missing: keep the page's folder together.`);
    yield pieces;
  }
  Object.assign(window, { headloomPart: undefined });
}
