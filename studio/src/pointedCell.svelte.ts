// The value of the cell under the pointer.

import type { Cell } from "./matrixView";

/** The pointer passes many cells: one is read where it stays so many milliseconds. */
const STAYS = 30;

export class PointedCell<Value> {
  private known: { cell: Cell; value: Value } | null = $state.raw(null);

  /**
   * cell: the cell; null: none.
   * reader: a function that reads a cell; it is replaced when the view shows something else.
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

  /** The value of the current cell; null: not read yet. */
  get value(): Value | null {
    const { known } = this,
      at = this.cell();
    const same = known && at && known.cell.row === at.row && known.cell.column === at.column;
    return same ? known.value : null;
  }
}
