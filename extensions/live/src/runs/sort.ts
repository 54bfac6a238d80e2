// Decides which runs the table shows, and in which order.

import type { RunRow } from "../data/messages";

export interface Sort {
  by: string;
  down: boolean;
}

export const NEWEST: Sort = { by: "when", down: true };

/** A value to sort by: numbers before words, and nothing at the end. */
function value(row: RunRow, by: string, columns: string[]): number | string | null {
  const [loss = null, validation = null, seconds = null] = row.order;
  switch (by) {
    case "run": return row.name || row.run;
    case "status": return row.status;
    case "loss": return loss;
    case "validation": return validation;
    case "time": return seconds;
  }
  const text = row.cells[columns.indexOf(by)] ?? "";
  return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
}

/** Pinned runs first, then as `sort` says; equal ones stay newest first. */
export function ordered(rows: RunRow[], sort: Sort, columns: string[]): RunRow[] {
  // They come newest first: by their numbers, since a clock may have been set back.
  const keyed = rows.map((row, at) => ({ row, key: sort.by === NEWEST.by ? -at : value(row, sort.by, columns) }));
  keyed.sort((a, b) => Number(b.row.pinned) - Number(a.row.pinned) || compare(a.key, b.key, sort.down));
  return keyed.map(({ row }) => row);
}

function compare(a: number | string | null, b: number | string | null, down: boolean): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  const order = typeof a === "number" ? a - (b as number) : a.localeCompare(b as string, "en", { numeric: true });
  return down ? -order : order;
}

/** Whether every word of the search is somewhere in the row's text. */
export function found(row: RunRow, notes: string, search: string): boolean {
  const text = [row.run, row.name, row.status, row.from, row.study, ...row.tags, ...row.cells, notes].join("\n").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
