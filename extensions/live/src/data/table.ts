// Keeps rows of float32 as they arrive. A new generation is shown once it is complete, so that nothing flickers.
//
// Plots ask for whole columns ten times a second: each column is cached, and only changed rows are read again.

import type { Part } from "./messages";

type Value = number | null;

interface Kept<T> {
  values: T[];
  seen: number;
}

export class Rows {
  count = 0;
  origin = 0;
  width = 1;
  /** From one recorded update to the next, at the first of them: a bucket this wide holds one. */
  every = 1;
  /** Which view of a wider table the columns are; 0 where there is but one. */
  view = 0;
  /** Counts the changes: what was drawn of an earlier one is brought up to date from `changedSince` on. */
  edit = 0;
  private data = new Float32Array(0);
  private edits = new Float64Array(0); // the last one of each row; it never falls from row to row
  private readonly kept = new Map<string, Kept<Value>>();

  constructor(
    readonly generation: number,
    readonly columns: number,
  ) {}

  /** Row `start` and those after it are replaced by `rows`. */
  splice(start: number, rows: Float32Array): void {
    const end = start * this.columns + rows.length;
    if (end > this.data.length) {
      const room = Math.max(end, 2 * this.data.length);
      this.data = grown(this.data, new Float32Array(room));
      this.edits = grown(this.edits, new Float64Array(Math.ceil(room / this.columns)));
    }
    this.data.set(rows, start * this.columns);
    this.count = end / this.columns;
    this.edit += 1;
    this.edits.fill(this.edit, start, this.count);
  }

  at(row: number, column: number): number {
    return this.data[row * this.columns + column] ?? NaN;
  }

  /** The first row that has changed since edit `seen`; `count` where none has. */
  changedSince(seen: number): number {
    let row = this.count;
    while (row > 0 && (this.edits[row - 1] as number) > seen) row -= 1;
    return row;
  }

  /** One column, NaN where there is no value. The array is the same every time: it is not to be changed or held. */
  column(index: number): number[] {
    return this.upToDate(`v${index}`, (row) => this.at(row, index)) as number[];
  }

  /** The same as uPlot takes it: null where there is no value, or none that a logarithmic axis has (`positive`). */
  line(index: number, positive = false): Value[] {
    const low = positive ? 0 : -Infinity;
    return this.upToDate(positive ? `p${index}` : `l${index}`, (row) => {
      const value = this.at(row, index);
      return value > low && value < Infinity ? value : null;
    });
  }

  /** Whether a bucket holds several recorded updates. */
  get merged(): boolean {
    return this.width > this.every;
  }

  /** The middle of the recorded updates of bucket `row` (the update itself where a bucket holds one). */
  step(row: number): number {
    return this.origin + row * this.width + (this.width - this.every) / 2;
  }

  /** Where an update lies among the buckets: 2.5 is the middle of bucket 2, whose own `step` has just this place. */
  place(step: number): number {
    return (step - this.origin + this.every / 2) / this.width;
  }

  steps(): number[] {
    return this.upToDate("steps", (row) => this.step(row)) as number[];
  }

  private upToDate(name: string, read: (row: number) => Value): Value[] {
    let kept = this.kept.get(name);
    if (!kept) this.kept.set(name, (kept = { values: [], seen: 0 }));
    const { values } = kept;
    for (let row = Math.min(this.changedSince(kept.seen), values.length); row < this.count; row += 1) values[row] = read(row);
    values.length = this.count;
    kept.seen = this.edit;
    return values;
  }
}

function grown<T extends Float32Array | Float64Array>(old: T, larger: T): T {
  larger.set(old);
  return larger;
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
    target.every = part.every ?? 1;
    target.view = part.view ?? 0;
    if (target === this.staged && !part.more) {
      this.rows = target;
      this.staged = null;
    }
    return true;
  }
}
