// The card of runs: a table of all runs of this folder that Python filters, sorts and pages, and what can be done with one or several.

import { Card } from "../shared/card";
import { el, setText, focusIn, toggle } from "../shared/dom";
import { ColumnChoice } from "./columns";
import { Editor } from "./editor";
import { Explained } from "./explained";
import { groupRows } from "./groups";
import { type Action, RowMenu } from "./menu";
import { Row } from "./row";
import { TableHead } from "./table-head";
import type { Store } from "../data/store";
import type { RunRow, RunsHead } from "../data/messages";
import { texts } from "../texts";

const { runs: words } = texts;
const MOST = 5; // as many as can be compared
const PAGE = 50; // as in workbench/ui/canvas/runs/runs_page.py
const ANSWER_MS = 5000; // after this time a comparison counts as refused; a notice gives the reason
const TYPING_MS = 250; // after the last key, until the filter is sent
const LIVE = ["queued", "running", "paused"];

export class Runs {
  readonly card = new Card(words.title, words.hint, "runs");
  private readonly chosen = new Set<string>();
  private readonly rows = new Map<string, Row>();
  private readonly table = el("table", "wb-runs-table");
  private readonly list = el("tbody");
  private readonly scroll = el("div", "wb-runs-scroll", "", { tabindex: "0", role: "region", "aria-label": words.table });
  private readonly again = el("button", "wb-tool", words.refresh, { type: "button", title: words.refreshTooltip });
  private readonly filter = el("input", "wb-runs-filter", "", { type: "search", placeholder: words.filterPlaceholder, "aria-label": words.filter, title: words.filterTooltip, spellcheck: "false" });
  private readonly problem = el("div", "wb-runs-problem", "", { role: "status" });
  private readonly group = el("select", "wb-runs-group", "", { "aria-label": words.groupBy });
  private readonly columns: ColumnChoice;
  private readonly explain: HTMLButtonElement;
  private readonly explained: Explained;
  private readonly pager = el("span", "wb-runs-pager", "", { role: "group", "aria-label": words.pages });
  private readonly place = el("span");
  private readonly back = el("button", "wb-tool", "‹", { type: "button", "aria-label": words.pageBefore, title: words.pageBefore });
  private readonly on = el("button", "wb-tool", "›", { type: "button", "aria-label": words.pageAfter, title: words.pageAfter });
  private readonly selection = el("span", "wb-runs-selection", "", { role: "group", "aria-label": words.selection });
  private readonly selected = el("b");
  private readonly deletions = el("div", "wb-runs-deleted", "", { role: "status" });
  private readonly all = el("input", "", "", { type: "checkbox", "aria-label": words.selectAllLabel, title: words.selectAll });
  private readonly head: TableHead;
  private readonly menu = new RowMenu();
  private shown: { head: RunsHead; rows: RunRow[] } | null = null; // the last table that is complete
  private editor: { run: string; row: Editor; order: string[] } | null = null;
  private asked: { runs: string; at: number } | null = null; // the comparison that is on its way
  private told = ""; // the content of the line of deletions
  private groups = ""; // the content of the list of columns by which runs are grouped
  private undoes = false; // the keyboard goes to Undo when that comes
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly store: Store) {
    this.head = new TableHead(store, this.all, () => this.draw());
    this.columns = new ColumnChoice(store);
    this.explained = new Explained(store, (run) => this.chosen.has(run), (run) => this.choose([run], !this.chosen.has(run)));
    this.explain = toggle(words.explain, words.explainTooltip, false, (on) => store.request("see_runs", { explain: on, picked: this.picked(), start: this.start }));
    const head = el("thead");
    head.append(this.head.root);
    this.table.append(head, this.list);
    this.scroll.append(this.table);
    const bar = el("div", "wb-runs-bar");
    this.pager.append(this.back, this.place, this.on);
    this.selection.append(this.selected, this.ofAll(words.pin, () => this.pin()), this.ofAll(words.delete, () => this.remove(this.shownAndChosen())), this.ofAll(words.clear, () => this.choose([...this.chosen], false)));
    bar.append(this.filter, this.group, this.columns.open, this.explain, this.pager);
    this.card.body.append(bar, this.problem, this.columns.list, this.selection, this.deletions, this.explained.root, this.scroll, this.menu.root);
    this.card.tools.append(this.again);
    this.card.root.hidden = true; // a view of a single job has no list
    this.again.addEventListener("click", () => store.request("refresh"));
    this.filter.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.see({ filter: this.filter.value }), TYPING_MS);
    });
    this.filter.addEventListener("keydown", (event) => event.stopPropagation());
    this.group.addEventListener("change", () => this.see({ group: this.group.value }));
    this.back.addEventListener("click", () => this.see({ start: this.start - PAGE }));
    this.on.addEventListener("click", () => this.see({ start: this.start + PAGE }));
    this.all.addEventListener("change", () => this.choose([...this.rows.keys()], this.all.checked));
  }

  destroy(): void {
    clearTimeout(this.timer);
    this.explained.destroy();
  }

  draw(): void {
    this.card.root.hidden = this.store.state.runs === undefined;
    this.shown = this.complete() ?? this.shown;
    if (this.shown === null) return;
    const { head } = this.shown;
    const known = this.known();
    this.card.empty = head.known === 0 && !this.store.state.deleting?.length;
    this.drawBar(head);
    this.head.draw();
    this.columns.draw();
    const held = this.focused();
    if (this.editor) this.keepOrder(known, this.editor.order);
    const there = new Set(known.map((row) => row.run));
    for (const [run, row] of this.rows) {
      if (there.has(run)) continue;
      row.root.remove();
      this.rows.delete(run);
    }
    for (const { runs } of this.store.state.deleting ?? []) for (const run of runs) this.chosen.delete(run);
    if (this.editor && !there.has(this.editor.run)) this.close();
    const wanted = known.flatMap((told) => {
      let row = this.rows.get(told.run);
      if (!row) this.rows.set(told.run, (row = this.made(told.run)));
      row.show(told, head.columns, head.numeric, this.notes(told.run));
      return this.editor?.run === told.run ? [row.root, this.editor.row.root] : [row.root];
    });
    if (head.groups) this.list.replaceChildren(...groupRows(head.group, head.groups, (filter) => this.within(filter)));
    else {
      this.list.querySelectorAll(".wb-run-group").forEach((row) => row.remove());
      wanted.forEach((row, i) => {
        if (this.list.children[i] !== row) this.list.insertBefore(row, this.list.children[i] ?? null);
      });
    }
    this.drawDeletions();
    this.mark();
    this.opened();
    this.refocus(held);
  }

  private get start(): number {
    return this.shown?.head.start ?? 0;
  }

  private see(wanted: Record<string, unknown>): void {
    this.menu.close(false);
    this.store.request("see_runs", wanted);
  }

  /** The runs of one group, listed. */
  private within(filter: string): void {
    this.filter.value = filter;
    this.see({ filter, group: "" });
  }

  /** The table whose rows have all come; null: some are on their way. */
  private complete(): { head: RunsHead; rows: RunRow[] } | null {
    const head = this.store.state.runs;
    if (!head) return null;
    const state = this.store.state as Record<string, unknown>;
    const parts = Array.from({ length: head.parts }, (_, i) => state[`rows.${i}`] as { of: number; rows: RunRow[] } | undefined);
    if (parts.some((part) => part?.of !== head.of)) return null;
    return { head, rows: parts.flatMap((part) => part!.rows) };
  }

  private drawBar(head: RunsHead): void {
    if (focusIn(this.filter) === null) this.filter.value = head.filter;
    setText(this.problem, head.problem ? words.problem(head.problem) : words.unmatched(head.hint));
    this.problem.hidden = !head.problem && !head.hint;
    this.filter.setAttribute("aria-invalid", String(head.problem !== ""));
    const names = head.group && !head.groupable.includes(head.group) ? [...head.groupable, head.group] : head.groupable;
    const groups = JSON.stringify(names);
    if (groups !== this.groups) this.group.replaceChildren(el("option", "", words.noGroups, { value: "" }), ...names.map((name) => el("option", "", words.by(name), { value: name })));
    this.groups = groups;
    this.group.value = head.group;
    this.explain.setAttribute("aria-pressed", String(head.explain));
    this.explained.draw();
    const end = Math.min(head.matching, head.start + PAGE);
    this.pager.hidden = head.matching <= PAGE || head.groups !== null;
    setText(this.place, words.page(head.start + 1, end, head.matching));
    this.back.disabled = head.start === 0;
    this.on.disabled = end >= head.matching;
    const hidden = head.known - head.matching;
    this.card.setCaption([hidden > 0 ? words.noMatch(hidden, head.known) : "", head.waiting > 0 ? words.waiting(head.waiting) : "", head.unread > 0 ? words.older(head.unread) : ""].filter(Boolean).join(texts.separator));
  }

  private made(run: string): Row {
    return new Row(this.store, run, {
      choose: (id, on) => this.choose([id], on),
      width: (column) => this.head.width(column),
      menu: (id, button) => {
        if (this.menu.isOpenFor(button)) this.menu.close(true);
        else this.menu.open(button, words.menuLabel(id), this.actions(id));
      },
    });
  }

  /** What can be done with one run now. */
  private actions(run: string): Action[] {
    const row = this.known().find((one) => one.run === run);
    const goes = row !== undefined && LIVE.includes(row.status);
    const { ended, unkept } = this.store.state;
    const ask = (what: string) => () => this.store.request(what, { run });
    return [
      { what: "open", text: words.open, title: words.openTooltip(run), why: "", work: ask("show") },
      { what: "continue", text: words.continue, title: words.continueTooltip(run), why: ended?.[run] ?? "", work: ask("continue") },
      { what: "rerun", text: words.rerun, title: words.rerunTooltip(run), why: unkept?.[run] ?? "", work: ask("rerun") },
      { what: "export", text: words.export, title: words.exportTooltip(run), why: goes ? words.goes : "", work: ask("export") },
      { what: "edit", text: words.edit, title: words.editTooltip(run), why: "", work: () => this.edit(run) },
      { what: "delete", text: words.delete, title: words.deleteTooltip(run), why: goes ? words.goes : "", work: () => this.remove([run]) },
    ];
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

  /** The rows as they are now: those that run with their present values, those being deleted left out. */
  private known(): RunRow[] {
    const { moving = [], deleting = [] } = this.store.state;
    const present = new Map(moving.map((row) => [row.run, row]));
    const gone = new Set(deleting.flatMap((one) => one.runs));
    return (this.shown?.rows ?? []).filter((row) => !gone.has(row.run)).map((row) => ({ ...row, ...present.get(row.run) }));
  }

  private notes(run: string): string {
    return (this.store.state as Record<string, unknown>)[`notes.${run}`] as string ?? "";
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
    if (this.shown?.head.explain) this.store.request("see_runs", { picked: this.picked(), start: this.start });
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

  /** The runs that are drawn against their results: the selected ones, or all that match. */
  private picked(): string[] {
    return this.chosen.size > 1 ? [...this.chosen] : [];
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
    const live = new Set(this.known().filter((row) => LIVE.includes(row.status)).map((row) => row.run));
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
    const editor = new Editor(this.store, row, this.notes(run), this.head.root.children.length, () => this.close());
    this.editor = { run, row: editor, order: [...this.rows.entries()].sort((a, b) => at(a[1].root) - at(b[1].root)).map(([id]) => id) };
    this.draw();
    editor.focus();
  }

  private close(): void {
    const { run, row } = this.editor!;
    const held = focusIn(row.root) !== null;
    this.editor = null;
    row.root.remove();
    if (held) this.rows.get(run)?.root.querySelector<HTMLElement>('[data-what="more"]')?.focus();
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
