// Rows of float32 as they arrive. A new generation is kept aside until it is whole, so that nothing flickers.

import type { Part } from "./wire";

export class Rows {
  count = 0;
  origin = 0;
  width = 1;
  private data = new Float32Array(0);

  constructor(
    readonly generation: number,
    readonly columns: number,
  ) {}

  /** Row `start` and those after it are replaced by `rows`. */
  splice(start: number, rows: Float32Array): void {
    const end = start * this.columns + rows.length;
    if (end > this.data.length) {
      const larger = new Float32Array(Math.max(end, 2 * this.data.length));
      larger.set(this.data);
      this.data = larger;
    }
    this.data.set(rows, start * this.columns);
    this.count = end / this.columns;
  }

  at(row: number, column: number): number {
    return this.data[row * this.columns + column] ?? NaN;
  }

  column(index: number): number[] {
    return Array.from({ length: this.count }, (_, row) => this.at(row, index));
  }

  /** The update at the middle of bucket `row` (the update itself where a bucket holds one). */
  step(row: number): number {
    return this.origin + (row + 0.5) * this.width - 0.5;
  }

  steps(): number[] {
    return Array.from({ length: this.count }, (_, row) => this.step(row));
  }
}

export class Table {
  rows = new Rows(-1, 1);
  private staged: Rows | null = null;

  /** Take in a part; false when rows before it are missing here. */
  apply(part: Part, data: Float32Array): boolean {
    let target = this.rows.generation === part.generation ? this.rows : this.staged;
    if (target?.generation !== part.generation) {
      if (part.start > 0) return false;
      target = this.staged = new Rows(part.generation, part.columns);
    }
    if (part.start > target.count) return false;
    target.splice(part.start, data);
    target.origin = part.origin ?? 0;
    target.width = part.width ?? 1;
    if (target === this.staged && !part.more) {
      this.rows = target;
      this.staged = null;
    }
    return true;
  }
}
