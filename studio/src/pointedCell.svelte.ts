// What is read of the cell under the pointer.

import type { Cell } from "./matrixView";

/** The pointer passes many cells: one is read where it stays so many milliseconds. */
const STAYS = 30;

export class PointedCell<Value> {
  private known: { cell: Cell; value: Value } | null = $state.raw(null);

  /**
   * cell: the one in question; null: none.
   * reader: how a cell is read of what is shown; asked again when that is something else.
   */
  constructor(
    private readonly cell: () => Cell | null,
    reader: () => (cell: Cell) => Promise<Value>,
    wait: () => number = () => STAYS,
  ) {
    $effect(() => {
      const at = cell(),
        read = reader();
      let gone = false;
      this.known = null;
      if (!at) return;
      const timer = setTimeout(
        () =>
          read(at).then(
            (value) => gone || (this.known = { cell: at, value }),
            () => {},
          ),
        wait(),
      );
      return () => {
        gone = true;
        clearTimeout(timer);
      };
    });
  }

  /** Of the cell that is in question now; null: not read yet. */
  get value(): Value | null {
    const { known } = this,
      at = this.cell();
    const same = known && at && known.cell.row === at.row && known.cell.column === at.column;
    return same ? known.value : null;
  }
}
