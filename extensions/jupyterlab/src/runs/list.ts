// Keeps the loaded part of the list of runs: the query, the rows, and which of them are selected.

import { Signal } from "@lumino/signaling";
import { keyOf } from "../messages";
import type { Event, Page, Query, Ref, Row } from "../messages";

export const PAGE = 50;
/** As many as the server gives at once. */
const MOST = 200;
/** As many as can be compared. */
export const COMPARED = 5;

export type Filter = Omit<Query, "offset" | "limit">;
export const NEWEST: Filter = { search: "", status: "", tag: "", root: "", sort: "created", order: "desc" };

/** A row, the names of the settings in its cells (each page has its own), and the name of its root where there are several. */
export type ListedRow = Row & { columns: string[]; folder: string };

export class RunList {
  readonly changed = new Signal<this, void>(this);
  rows: ListedRow[] = [];
  /** What the last page said besides its rows; null: none has come. */
  page: Omit<Page, "rows"> | null = null;
  /** Why the last request failed, or "". */
  error = "";
  loading = false;
  /** By `keyOf`, in the order of the selection. */
  readonly selected = new Set<string>();
  /** The row that the keyboard is at. */
  active: string | null = null;
  /** Where a range begins: the row that was selected last without one. */
  private anchor: string | null = null;
  private filter: Filter = NEWEST;
  /** As many rows as are wanted. */
  private wanted = PAGE;
  /** Counts the questions: an answer to an earlier one is dropped. */
  private asked = 0;
  /** The load under way, if there is one. */
  private work: Promise<void> = Promise.resolve();
  /** Something has changed after the load under way began. */
  private stale = false;

  /** Rows that are left out, since they are being deleted. */
  private hidden: (ref: Ref) => boolean = () => false;
  private fetched: ListedRow[] = [];

  /** fetch: a page of runs from the server. */
  constructor(private readonly fetch: (query: Query) => Promise<Page>) {}

  get asks(): Filter {
    return this.filter;
  }

  /** Ask for other runs, or for another order. */
  ask(filter: Partial<Filter>): Promise<void> {
    this.filter = { ...this.filter, ...filter };
    this.wanted = PAGE;
    return (this.work = this.load());
  }

  /** Load again what is loaded. While that is under way it is finished, and done once more. */
  refresh(): Promise<void> {
    if (this.loading) this.stale = true;
    else this.work = this.load();
    return this.work;
  }

  /** Leave out the rows for which this holds, as long as it does. */
  hide(hidden: (ref: Ref) => boolean): void {
    this.hidden = hidden;
    if (this.page !== null) this.take(this.fetched, this.page);
    this.changed.emit();
  }

  /** Load the next page; a load that is under way takes it along. */
  more(): Promise<void> {
    if (!this.hasMore) return Promise.resolve();
    this.wanted = this.fetched.length + PAGE;
    if (!this.loading) this.work = this.load();
    return this.work;
  }

  get hasMore(): boolean {
    return this.page !== null && this.fetched.length < this.page.matching;
  }

  /** What the server says by itself; whether the list has to be loaded again. */
  hear(event: Event): boolean {
    if (event.type === "list") return true;
    const told = new Map((event.type === "rows" ? event.rows : [event.row]).map((row) => [keyOf(row), row]));
    if (!this.rows.some((row) => told.has(keyOf(row)))) return event.type === "began";
    // The server does not know which settings this list shows: they do not change while a run runs.
    const now = (row: ListedRow) => ({ ...row, ...told.get(keyOf(row)), cells: row.cells });
    [this.rows, this.fetched] = [this.rows.map(now), this.fetched.map(now)];
    this.changed.emit();
    return event.type === "ended";
  }

  /** A row by its key, of those that are loaded. */
  row(key: string | null): ListedRow | undefined {
    return this.rows.find((row) => keyOf(row) === key);
  }

  /** The rows that are selected, in the order of the list. */
  get chosen(): ListedRow[] {
    return this.rows.filter((row) => this.selected.has(keyOf(row)));
  }

  /** Select this run alone ("one"), add it or take it away ("toggle"), or select all from the one before to it ("to"). */
  select(ref: Ref, how: "one" | "toggle" | "to"): void {
    const key = keyOf(ref);
    const from = this.rows.findIndex((row) => keyOf(row) === this.anchor);
    if (how === "toggle") {
      if (!this.selected.delete(key)) this.selected.add(key);
    } else {
      this.selected.clear();
      const to = this.rows.findIndex((row) => keyOf(row) === key);
      const range = how === "to" && from >= 0 ? this.rows.slice(Math.min(from, to), Math.max(from, to) + 1) : [];
      range.forEach((row) => this.selected.add(keyOf(row)));
      this.selected.add(key);
    }
    if (how !== "to") this.anchor = key;
    this.active = key;
    this.changed.emit();
  }

  private async load(): Promise<void> {
    const asked = ++this.asked;
    this.loading = true;
    this.changed.emit();
    do {
      this.stale = false;
      await this.read(asked);
      if (asked !== this.asked) return; // by another question
      this.loading = this.stale;
      this.changed.emit();
    } while (this.stale);
  }

  /** Read as many rows as are wanted, in as many requests as that needs. */
  private async read(asked: number): Promise<void> {
    const rows = new Map<string, ListedRow>(); // a run that began between two requests moves a row from one page to the next
    let offset = 0;
    try {
      for (;;) {
        const { rows: more, ...page } = await this.fetch({ ...this.filter, offset, limit: Math.min(MOST, this.wanted - offset) });
        if (asked !== this.asked) return;
        offset += more.length;
        const names = new Map(page.roots.length > 1 ? page.roots.map(({ key, name }) => [key, name]) : []);
        for (const row of more) rows.set(keyOf(row), { ...row, columns: page.columns, folder: names.get(row.root) ?? "" });
        if (more.length > 0 && offset < Math.min(this.wanted, page.matching)) continue;
        return this.take([...rows.values()], page);
      }
    } catch (error) {
      if (asked === this.asked) this.error = error instanceof Error ? error.message : String(error);
    }
  }

  private take(fetched: ListedRow[], page: Omit<Page, "rows">): void {
    this.fetched = fetched;
    const rows = fetched.filter((row) => !this.hidden(row));
    const at = this.rows.findIndex((row) => keyOf(row) === this.active);
    [this.rows, this.page, this.error] = [rows, page, ""];
    const there = new Set(rows.map(keyOf));
    for (const key of this.selected) if (!there.has(key)) this.selected.delete(key);
    if (this.active === null || there.has(this.active)) return;
    const next = rows[Math.min(at, rows.length - 1)]; // the run is gone: the keyboard is at the one in its place
    this.active = next === undefined ? null : keyOf(next);
  }
}
