// Rows for the tests.

import type { Page, Row } from "../src/messages";

export function row(run: string, more: Partial<Row> = {}): Row {
  return {
    root: "a1b2", run, kind: "fit", status: "finished", loss: "0.5", metric: "val_loss", value: "0.6", step: 10, total: 10, progress: 1, left: "",
    time: "3 s", created: 1, from: "", name: "", tags: [], pinned: false, notes: "", version: "v0", answer: "", cells: [], spark: [], dots: [], trouble: null,
    commands: false, launched: false, waits: "", error: "", study: "", ...more,
  };
}

export function page(rows: Row[], more: Partial<Page> = {}): Page {
  return { rows, matching: rows.length, total: rows.length, columns: [], statuses: {}, tags: [], roots: [], reading: false, ...more };
}
