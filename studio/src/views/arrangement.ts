// How the tiles of all heads fit into a stage: the largest tiles win.

export interface Group {
  rows: number;
  columns: number;
}

export const LABEL = 34; // room for the names of rows
const GAP = 10,
  GAP_NARROW = 4; // between tiles
export const APART = 28; // between groups
export const TITLE = 46; // above a group: its name and the numbers of its columns

/** Up to here, in pixels, a studio is narrow: its stage grows with what it holds, the page scrolls.
 * The style sheet's container queries say the same. */
const NARROW = 900,
  PHONE = 560;
const MOST = 168,
  MOST_NARROW = 104;

interface Room {
  height: number;
  /** The largest tile. */
  most: number;
  gap: number;
}

/** The height that tiles may fill, how large they may be and how far apart they stand. */
export const roomFor = (studio: number, height: number): Room =>
  studio <= NARROW
    ? { height: Infinity, most: MOST_NARROW, gap: studio <= PHONE ? GAP_NARROW : GAP }
    : { height, most: MOST, gap: GAP };

/** The size of a tile and how many groups stand in a row. */
export function arrange(
  groups: Group[],
  width: number,
  { height, most, gap }: Room,
  caption: number,
): { tile: number; across: number } {
  let best = { tile: 0, across: 1 };
  for (let across = 1; across <= groups.length; across++) {
    let wide = Infinity,
      rows = 0,
      bands = 0;
    for (let start = 0; start < groups.length; start += across) {
      const band = groups.slice(start, start + across);
      const columns = band.reduce((sum, group) => sum + group.columns, 0);
      wide = Math.min(
        wide,
        (width - band.length * LABEL - (band.length - 1) * APART) / columns - gap,
      );
      rows += Math.max(...band.map((group) => group.rows));
      bands++;
    }
    const high = (height - bands * TITLE - (bands - 1) * 16) / rows - GAP - caption;
    // Rather a stage that scrolls than tiles too small to be read.
    const tile = Math.min(wide, Math.max(high, 38), most);
    if (tile > best.tile) best = { tile, across };
  }
  return { tile: Math.max(Math.floor(best.tile), 14), across: best.across };
}
