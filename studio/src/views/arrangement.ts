// How the tiles of all heads fit into a stage: the largest tiles win.

export interface Group {
  rows: number;
  columns: number;
}

export const LABEL = 34; // room for the names of rows
const GAP = 10,
  GAP_NARROW = 4; // between tiles, at most
export const APART = 28; // between groups, and between the parts of one
export const TITLE = 46; // above a group: its name and the numbers of its columns

/** Up to this width, in pixels, a studio is narrow: its stage grows with its content.
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

export interface Fit {
  tile: number;
  /** How many groups stand in a row. */
  across: number;
  /** In how many parts, side by side, the rows of a group stand. */
  parts: number;
  gap: number;
  /** Pixels of height for each row that are left. */
  spare: number;
}

/** Small tiles stand closer; from which size on, and how far apart at most. */
const GAPS = [
  [38, GAP],
  [20, 4],
  [10, 2],
  [0, 1],
] as const;

/** The strip under a tile: how far below it, and how high. */
export const stripOf = (tile: number) =>
  tile >= 20 ? { away: 3, high: 3 } : { away: tile >= 10 ? 1 : 0, high: 2 };

/** Between the rows of tiles. */
export const rowGapOf = ({ tile, gap }: { tile: number; gap: number }) => (tile >= 38 ? 8 : gap);

/** The size of tiles, and how their groups stand.
 *
 * caption: pixels under a tile; 0: its strip alone.
 * parts: in how many the rows of a group may stand side by side, at most.
 * least: rather than tiles smaller than that, a stage that scrolls.
 */
export function arrange(
  groups: Group[],
  width: number,
  { height, most, gap }: Room,
  caption: number,
  parts = 1,
  least = 38,
): Fit {
  let best: Fit = { tile: 0, across: 1, parts: 1, gap, spare: 0 };
  for (let split = 1; split <= parts; split++)
    for (let across = 1; across <= groups.length; across++) {
      const bands: Group[][] = [];
      for (let start = 0; start < groups.length; start += across)
        bands.push(groups.slice(start, start + across));
      for (const [n, [from, widest]] of GAPS.entries()) {
        const near = Math.min(gap, widest);
        const wide = Math.min(
          ...bands.map((band) => {
            const columns = band.reduce((sum, group) => sum + group.columns * split, 0);
            const blocks = band.length * split;
            return (width - blocks * LABEL - (blocks - 1) * APART) / columns - near;
          }),
        );
        const rows = bands.reduce(
          (sum, band) => sum + Math.max(...band.map((group) => Math.ceil(group.rows / split))),
          0,
        );
        /** The height of tiles with the captions and gaps of a size. */
        const highest = (size: number) => {
          const { away, high: strip } = stripOf(size);
          const under = caption || away + strip + (size >= 20 ? 2 : 0);
          const between = size >= 38 ? GAP : near;
          return (height - bands.length * TITLE - (bands.length - 1) * 16) / rows - between - under;
        };
        const high = highest(from);
        let tile = Math.floor(Math.min(wide, Math.max(high, least), most));
        const larger = n ? GAPS[n - 1][0] : Infinity;
        if (tile >= larger)
          tile = Math.min(tile, Math.max(larger - 1, Math.floor(highest(larger))));
        if (tile < from && from > least) continue;
        const spare = Number.isFinite(high) ? Math.max(high - tile, 0) : 0;
        if (tile > best.tile) best = { tile, across, parts: split, gap: near, spare };
        break;
      }
    }
  return { ...best, tile: Math.max(best.tile, Math.min(least, 14)) };
}
