// The card of runs: a table of all runs of this folder, what differs in them, and what can be done with one or several.

import { Card } from "../shared/card";
import { el, setText, focusIn } from "../shared/dom";
import { Editor } from "./editor";
import { found, NEWEST, ordered, type Sort } from "./sort";
import { Row } from "./row";
import type { Store } from "../data/store";
import type { RunRow } from "../data/messages";
import { texts } from "../texts";

const { runs: words } = texts;
const MOST = 5; // as many as can be compared
const ANSWER_MS = 5000; // after this time a comparison counts as refused; a notice gives the reason
const STATES = ["all", "running", "queued", "paused", "finished", "stopped", "failed"] as const;

export class Runs {
  readonly card = new Card(words.title, words.hint, "runs");
  private readonly chosen = new Set<string>();
  private readonly rows = new Map<string, Row>();
  private readonly head = el("tr");
  private readonly table = el("table", "wb-runs-table");
  private readonly list = el("tbody");
  private readonly scroll = el("div", "wb-runs-scroll", "", { tabindex: "0", role: "region", "aria-label": words.table });
  private readonly again = el("button", "wb-tool", words.refresh, { type: "button", title: words.refreshTooltip });
  private readonly search = el("input", "wb-runs-search", "", { type: "search", placeholder: words.searchPlaceholder, "aria-label": words.search });
  private readonly state = el("select", "wb-runs-state", "", { "aria-label": words.statusFilter });
  private readonly selection = el("span", "wb-runs-selection", "", { role: "group", "aria-label": words.selection });
  private readonly selected = el("b");
  private readonly deletions = el("div", "wb-runs-deleted", "", { role: "status" });
  private readonly all = el("input", "", "", { type: "checkbox", "aria-label": words.selectAllLabel, title: words.selectAll });
  private readonly rank = new Map<string, HTMLElement>(); // the heads by what they sort by
  private sort: Sort;
  private editor: { run: string; row: Editor; order: string[] } | null = null;
  private columns: string[] | null = null;
  private asked: { runs: string; at: number } | null = null; // the comparison that is on its way
  private told = ""; // the content of the line of deletions
  private undoes = false; // the keyboard goes to Undo when that comes

  constructor(private readonly store: Store) {
    this.sort = store.viewOption("runs.sort", NEWEST);
    const head = el("thead");
    head.append(this.head);
    this.table.append(head, this.list);
    this.scroll.append(this.table);
    this.state.append(...STATES.map((name) => el("option", "", name === "all" ? words.anyStatus : texts.status[name], { value: name })));
    this.state.value = store.viewOption("runs.status", "all");
    const bar = el("div", "wb-runs-bar");
    this.selection.append(this.selected, this.ofAll(words.pin, () => this.pin()), this.ofAll(words.delete, () => this.remove(this.shownAndChosen())), this.ofAll(words.clear, () => this.choose([...this.chosen], false)));
    bar.append(this.search, this.state, this.selection);
    this.card.body.append(bar, this.deletions, this.scroll);
    this.card.tools.append(this.again);
    this.card.root.hidden = true; // a view of a single job has no list
    this.again.addEventListener("click", () => store.request("refresh"));
    this.search.addEventListener("input", () => this.draw());
    this.search.addEventListener("keydown", (event) => event.stopPropagation());
    this.state.addEventListener("change", () => {
      store.setViewOption("runs.status", this.state.value);
      this.draw();
    });
    this.all.addEventListener("change", () => this.choose([...this.rows.keys()], this.all.checked));
  }

  draw(): void {
    const { columns = [], more = 0 } = this.store.state.runs ?? {};
    const known = this.known();
    this.card.root.hidden = this.store.state.runs === undefined;
    this.card.empty = known.length === 0 && !this.store.state.deleting?.length;
    if (JSON.stringify(columns) !== JSON.stringify(this.columns)) this.name(columns);
    const held = this.focused();
    const shown = ordered(known.filter((row) => this.passes(row)), this.sort, columns);
    if (this.editor) this.keepOrder(shown, this.editor.order);
    const there = new Set(shown.map((row) => row.run));
    for (const [run, row] of this.rows) {
      if (there.has(run)) continue;
      row.root.remove();
      this.rows.delete(run);
      if (!known.some((one) => one.run === run)) this.chosen.delete(run);
    }
    if (this.editor && !there.has(this.editor.run)) this.close();
    const wanted = shown.flatMap((told) => {
      let row = this.rows.get(told.run);
      if (!row) this.rows.set(told.run, (row = new Row(this.store, told.run, { choose: (run, on) => this.choose([run], on), edit: (run) => this.edit(run), remove: (run) => this.remove([run]) })));
      row.show(told, this.store.state.ended?.[told.run] ?? "", this.store.state.unkept?.[told.run] ?? "", this.notes(told.run));
      return this.editor?.run === told.run ? [row.root, this.editor.row.root] : [row.root];
    });
    wanted.forEach((one, i) => {
      if (this.list.children[i] !== one) this.list.insertBefore(one, this.list.children[i] ?? null);
    });
    const hidden = known.length - shown.length;
    const older = more > 0 ? words.older(more) : "";
    this.card.setCaption([hidden > 0 ? words.noMatch(hidden, known.length) : "", older].filter(Boolean).join(texts.separator));
    this.drawDeletions();
    this.mark();
    this.refocus(held);
  }

  /** The comparison has changed, here or in code. */
  compared(): void {
    const runs = this.store.state.compared?.runs ?? [];
    const waits = this.asked !== null && Date.now() - this.asked.at < ANSWER_MS;
    const answer = this.asked?.runs === key(runs);
    if (waits && !answer) return; // the answer to an older question
    this.asked = null;
    if (answer || (runs.length === 0 && this.chosen.size < 2)) return this.mark();
    this.chosen.clear();
    runs.forEach((run) => this.chosen.add(run));
    this.mark();
  }

  /** Which run the cards show. */
  opened(): void {
    const run = this.store.state.opened?.run;
    for (const [id, row] of this.rows) {
      row.root.toggleAttribute("data-opened", id === run);
      if (id === run) row.root.setAttribute("aria-current", "true");
      else row.root.removeAttribute("aria-current");
    }
  }

  /** The keyboard to this run, or to the table where it is not listed. */
  focus(run: string): void {
    const row = this.rows.get(run)?.root;
    (row?.querySelector<HTMLElement>('[data-what="open"]') ?? this.scroll).focus();
  }

  /** The runs as they are now: those that run with their present values, those being deleted left out. */
  private known(): RunRow[] {
    const { runs, moving = [], deleting = [] } = this.store.state;
    const present = new Map(moving.map((row) => [row.run, row]));
    const gone = new Set(deleting.flatMap((one) => one.runs));
    return (runs?.rows ?? []).filter((row) => !gone.has(row.run)).map((row) => ({ ...row, ...present.get(row.run) }));
  }

  private notes(run: string): string {
    return (this.store.state as Record<string, unknown>)[`notes.${run}`] as string ?? "";
  }

  private passes(row: RunRow): boolean {
    const state = this.state.value;
    return (state === "all" || row.status.replace("?", "") === state) && found(row, this.notes(row.run), this.search.value.trim());
  }

  /** While a run is edited the rows stay where they are. */
  private keepOrder(rows: RunRow[], order: string[]): void {
    const place = (row: RunRow) => (order.includes(row.run) ? order.indexOf(row.run) : -1);
    rows.sort((a, b) => place(a) - place(b));
  }

  private choose(runs: string[], on: boolean): void {
    for (const run of runs) {
      if (on) this.chosen.add(run);
      else this.chosen.delete(run);
    }
    const listed = [...this.rows.keys()].filter((id) => this.chosen.has(id));
    const all = [...listed, ...[...this.chosen].filter((id) => !this.rows.has(id))]; // compared in code: older ones than those listed
    const wanted = all.length > 1 && all.length <= MOST ? all : [];
    if (wanted.length || this.store.state.compared) {
      const asked = (this.asked = { runs: key(wanted), at: Date.now() });
      setTimeout(() => this.refused(asked), ANSWER_MS);
      this.store.request("compare", { runs: wanted });
    }
    this.mark();
  }

  /** No answer came: tick the runs that are compared. */
  private refused(asked: { runs: string }): void {
    if (this.asked !== asked) return;
    this.asked = null;
    this.chosen.clear();
    this.store.state.compared?.runs.forEach((run) => this.chosen.add(run));
    this.mark();
  }

  /** What is done to the selected runs is done to those in sight. */
  private shownAndChosen(): string[] {
    return [...this.chosen].filter((run) => this.rows.has(run));
  }

  private pin(): void {
    const pinned = new Map(this.known().map((row) => [row.run, row.pinned]));
    const runs = this.shownAndChosen();
    const on = runs.some((run) => !pinned.get(run)); // all are: take the pins away
    for (const run of runs) if (pinned.get(run) !== on) this.store.request("annotate", { run, pinned: on });
  }

  private remove(runs: string[]): void {
    const live = new Set(this.known().filter((row) => ["queued", "running", "paused"].includes(row.status)).map((row) => row.run));
    const over = runs.filter((run) => !live.has(run));
    if (!over.length) return;
    this.store.request("delete", { runs: over });
    this.choose(over.filter((run) => this.chosen.has(run)), false);
    this.undoes = true;
  }

  /** What is being deleted, with the way back. */
  private drawDeletions(): void {
    const deleting = this.store.state.deleting ?? [];
    const told = JSON.stringify(deleting);
    if (told === this.told) return;
    this.told = told;
    this.deletions.hidden = deleting.length === 0;
    const held = focusIn(this.deletions) !== null;
    this.deletions.replaceChildren(...deleting.map(({ number, runs, due }) => {
      const line = el("div", "", words.deleted(runs));
      if (due) return line;
      const undo = el("button", "wb-tool", words.undo, { type: "button", "aria-label": words.undoLabel(runs), title: words.undoTooltip });
      undo.addEventListener("click", () => this.store.request("undo_delete", { number }));
      line.append(undo);
      return line;
    }));
    const undo = this.deletions.querySelector<HTMLElement>("div:last-child > button");
    if (this.undoes && undo) undo.focus();
    else if (held) (undo ?? this.scroll).focus();
    this.undoes = false;
  }

  private edit(run: string): void {
    const row = this.known().find((one) => one.run === run);
    if (!row) return;
    this.editor?.row.root.remove();
    const editor = new Editor(this.store, row, this.notes(run), this.head.children.length, () => this.close());
    this.editor = { run, row: editor, order: [...this.rows.entries()].sort((a, b) => at(a[1].root) - at(b[1].root)).map(([id]) => id) };
    this.draw();
    editor.focus();
  }

  private close(): void {
    const { run, row } = this.editor!;
    const held = focusIn(row.root) !== null;
    this.editor = null;
    row.root.remove();
    if (held) this.rows.get(run)?.root.querySelector<HTMLElement>('[data-what="edit"]')?.focus();
    this.draw();
  }

  private mark(): void {
    for (const [run, row] of this.rows) row.mark(this.chosen.has(run));
    const count = this.shownAndChosen().length;
    this.all.checked = count > 0 && count >= this.rows.size;
    this.all.indeterminate = count > 0 && !this.all.checked;
    this.selection.hidden = count === 0;
    setText(this.selected, count === 1 ? words.selectOneMore(count) : count > MOST ? words.tooMany(count, MOST) : words.selected(count));
  }

  private name(columns: string[]): void {
    this.columns = columns;
    this.head.replaceChildren();
    this.rank.clear();
    const select = el("th", "", "", { scope: "col" });
    select.append(this.all);
    this.head.append(select);
    for (const by of ["run", "status", "", "loss", "validation", ...columns, "time", "when"]) this.head.append(this.headOf(by));
    const actions = el("th", "", "", { scope: "col" });
    actions.append(el("span", "wb-spoken", words.actions));
    this.head.append(actions);
    this.markSort();
  }

  /** The head of a column, a button that sorts by it: upwards, downwards, and back to the newest first. */
  private headOf(by: string): HTMLElement {
    const cell = el("th", "", "", { scope: "col" });
    if (!by) {
      cell.append(el("span", "wb-spoken", words.sparkline));
      return cell;
    }
    const name = (words.columns as Record<string, string>)[by] ?? by;
    const button = el("button", "wb-sort", name, { type: "button", title: words.sortBy(name) });
    button.addEventListener("click", () => {
      const { by: before, down } = this.sort;
      this.sort = before !== by ? { by, down: false } : down ? NEWEST : { by, down: true };
      this.store.setViewOption("runs.sort", this.sort);
      this.markSort();
      this.draw();
    });
    cell.append(button);
    this.rank.set(by, cell);
    return cell;
  }

  private markSort(): void {
    for (const [by, cell] of this.rank) cell.setAttribute("aria-sort", by !== this.sort.by ? "none" : this.sort.down ? "descending" : "ascending");
  }

  private ofAll(text: string, clicked: () => void): HTMLElement {
    const button = el("button", "wb-tool", text, { type: "button", "aria-label": words.ofSelected(text) });
    button.addEventListener("click", clicked);
    return button;
  }

  /** Where the keyboard is, to be found again when rows have come, gone or moved. */
  private focused(): { element: HTMLElement; at: number; what: string } | null {
    const active = focusIn(this.list);
    if (active === null) return null;
    return { element: active, at: [...this.list.children].indexOf(active.closest("tr")!), what: active.dataset["what"] ?? "" };
  }

  private refocus(was: { element: HTMLElement; at: number; what: string } | null): void {
    if (!was || focusIn(this.list) || focusIn(this.deletions)) return;
    if (this.list.contains(was.element)) return was.element.focus();
    const row = this.list.children[Math.min(was.at, this.list.children.length - 1)];
    const same = row?.querySelector<HTMLElement>(`[data-what="${was.what}"]:not(:disabled)`);
    (same ?? row?.querySelector<HTMLElement>('[data-what="open"]') ?? this.again).focus();
  }
}

function at(row: Element): number {
  return [...(row.parentElement?.children ?? [])].indexOf(row);
}

function key(runs: string[]): string {
  return JSON.stringify([...runs].sort());
}
