// The fits of this folder: how each went, in what they differ, and what can be done with one.

import { Card } from "./card";
import { el, say } from "./dom";
import { Row } from "./runrow";
import type { Store } from "./store";

const MOST = 5; // as many as can be compared
const ANSWER_MS = 5000; // a comparison that takes longer was refused, as far as is known here: the notice says why

export class Runs {
  readonly card = new Card("Runs", "Every fit is listed here when it begins, with what can be done with it.", "runs");
  private readonly chosen = new Set<string>();
  private readonly rows = new Map<string, Row>();
  private readonly head = el("tr");
  private readonly table = el("table", "wb-runs-table");
  private readonly list = el("tbody");
  private readonly scroll = el("div", "wb-runs-scroll", "", { tabindex: "0", role: "region", "aria-label": "Runs, a table that can be scrolled" });
  private readonly again = el("button", "wb-tool", "refresh", { type: "button", title: "Look into the folder again: other processes may have added runs" });
  private columns = "";
  private asked: { runs: string; at: number } | null = null; // the comparison that is on its way

  constructor(private readonly store: Store) {
    const head = el("thead");
    head.append(this.head);
    this.table.append(head, this.list);
    this.scroll.append(this.table);
    this.card.body.append(this.scroll);
    this.card.tools.append(this.again);
    this.card.root.hidden = true; // a view of a single job has no list
    this.again.addEventListener("click", () => store.request("refresh"));
  }

  draw(): void {
    const { rows = [], columns = [], more = 0 } = this.store.state.runs ?? {};
    this.card.root.hidden = this.store.state.runs === undefined;
    this.card.empty = rows.length === 0;
    if (JSON.stringify(columns) !== this.columns) this.name(columns);
    const focus = this.focused();
    const there = new Set(rows.map((row) => row.run));
    for (const [run, row] of this.rows) {
      if (there.has(run)) continue;
      row.root.remove();
      this.rows.delete(run);
      this.chosen.delete(run);
    }
    rows.forEach((told, i) => {
      let row = this.rows.get(told.run);
      if (!row) this.rows.set(told.run, (row = new Row(this.store, told.run, (on) => this.choose(told.run, on))));
      row.show(told);
      if (this.list.children[i] !== row.root) this.list.insertBefore(row.root, this.list.children[i] ?? null);
    });
    this.card.setCaption(more > 0 ? `and ${more} older ${more === 1 ? "one" : "ones"}; bench.runs has them all` : "");
    this.mark();
    this.refocus(focus);
  }

  /** The comparison has changed, here or in code. */
  compared(): void {
    const runs = this.store.state.compared?.runs ?? [];
    const waits = this.asked !== null && Date.now() - this.asked.at < ANSWER_MS;
    if (waits && this.asked?.runs !== key(runs)) return; // the answer to an older question
    this.asked = null;
    if (runs.length === 0 && this.chosen.size < 2) return;
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

  private choose(run: string, on: boolean): void {
    if (on) this.chosen.add(run);
    else this.chosen.delete(run);
    const listed = [...this.rows.keys()].filter((id) => this.chosen.has(id));
    const runs = [...listed, ...[...this.chosen].filter((id) => !this.rows.has(id))]; // compared in code: older ones than those listed
    if (runs.length > 1 || this.store.state.compared) {
      const wanted = runs.length > 1 ? runs : [];
      const asked = (this.asked = { runs: key(wanted), at: Date.now() });
      setTimeout(() => this.refused(asked), ANSWER_MS);
      this.store.request("compare", { runs: wanted });
    }
    this.mark();
  }

  /** No answer came: the ticks say again what is compared. */
  private refused(asked: { runs: string }): void {
    if (this.asked !== asked) return;
    this.asked = null;
    this.chosen.clear();
    this.store.state.compared?.runs.forEach((run) => this.chosen.add(run));
    this.mark();
  }

  /** A run was not deleted after all. */
  kept(): void {
    this.rows.get(this.store.state.kept?.run ?? "")?.keep();
  }

  /** The keyboard to this run, or to the table where it is not listed. */
  focus(run: string): void {
    const row = this.rows.get(run)?.root;
    (row?.querySelector<HTMLElement>('[data-what="open"]') ?? this.scroll).focus();
  }

  private mark(): void {
    for (const [run, row] of this.rows) row.mark(this.chosen.has(run), this.chosen.size >= MOST);
    this.card.setKey(this.chosen.size === 1 ? [{ name: "tick one more to compare", swatch: "none" }] : []);
  }

  private name(columns: string[]): void {
    this.columns = JSON.stringify(columns);
    const names: [string, string][] = [
      ["", "Compare"], ["run", ""], ["status", ""], ["", "Loss over the run"], ["loss", ""], ["validation", ""],
      ...columns.map((name): [string, string] => [name, ""]), ["time", ""], ["when", ""], ["", "Actions"],
    ];
    this.head.replaceChildren();
    for (const [text, hidden] of names) {
      const cell = el("th", "", text, { scope: "col" });
      if (hidden) cell.append(el("span", "wb-spoken", hidden));
      this.head.append(cell);
    }
  }

  /** Where the keyboard is: the row and the button, to be found again when rows have come or gone. */
  private focused(): { at: number; what: string } | null {
    const active = this.list.getRootNode() instanceof Document ? document.activeElement : null;
    const row = active instanceof HTMLElement && this.list.contains(active) ? active.closest("tr") : null;
    return row ? { at: [...this.list.children].indexOf(row), what: (active as HTMLElement).dataset["what"] ?? "" } : null;
  }

  private refocus(was: { at: number; what: string } | null): void {
    if (!was || this.list.contains(document.activeElement)) return;
    const row = this.list.children[Math.min(was.at, this.list.children.length - 1)];
    const same = row?.querySelector<HTMLElement>(`[data-what="${was.what}"]:not(:disabled)`);
    (same ?? row?.querySelector<HTMLElement>('[data-what="open"]') ?? this.again).focus();
  }
}

/** The line above the cards while they show a recorded run, with the way back. */
export class Opened {
  readonly root = el("div", "wb-opened", "", { role: "status" });
  private readonly words = el("span");
  private readonly back = el("button", "wb-tool", "Back to now", { type: "button", title: "Show the last job of this notebook again" });

  private run = "";

  /** left: is told which run it was when the way back has been taken, and the keyboard was on it. */
  constructor(private readonly store: Store, private readonly left: (run: string) => void) {
    this.root.append(this.words, this.back);
    this.back.addEventListener("click", () => store.request("show", { run: "" }));
    this.draw();
  }

  draw(): void {
    const { opened } = this.store.state;
    const held = this.root.contains(document.activeElement);
    this.root.hidden = !opened;
    say(this.words, opened ? `Run ${opened.run}, from its record` : "");
    if (!opened && held) this.left(this.run);
    this.run = opened?.run ?? "";
  }
}

function key(runs: string[]): string {
  return JSON.stringify([...runs].sort());
}
