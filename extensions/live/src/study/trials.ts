// The table of a study's trials: what was tried, how it went, what can be done with each, and a row that adds one.

import { Card } from "../shared/card";
import { el, focusIn, setText } from "../shared/dom";
import { clock, number } from "../shared/format";
import type { Store } from "../data/store";
import type { StudyTrial } from "../data/messages";
import { texts } from "../texts";
import { carriesOut, type Selection, type StudyData, typed } from "./data";

const { study: words } = texts;
const GOING = ["trains", "waits", "interrupted"];
const SEEDS = 3; // that a verdict needs
/** Columns that a narrow view leaves out: details have them. */
const NARROW: Record<string, string> = { from: "wb-study-from", share: "wb-study-short", fresh: "wb-study-fresh" };
type Sort = { by: string; down: boolean };

export class Trials {
  readonly card = new Card(words.trials, words.trialsHint, "study-trials");
  private readonly scroll = el("div", "wb-study-scroll", "", { tabindex: "0", role: "region", "aria-label": words.trials });
  private readonly head = el("tr");
  private readonly list = el("tbody");
  private readonly add = el("tr", "wb-study-add");
  private readonly preview = el("button", "wb-study-code", "", { type: "button" });
  private readonly rows = new Map<number, { told: string; row: HTMLElement; more: HTMLElement | null }>();
  private readonly boxes = new Map<string, HTMLInputElement | HTMLSelectElement>();
  private readonly opened = new Set<number>();
  private sort: Sort | null;
  private told = "";

  constructor(private readonly store: Store, private readonly data: StudyData, private readonly selection: Selection) {
    this.sort = store.viewOption<Sort | null>("study.sort", null);
    const [table, head, foot] = [el("table", "wb-study-table"), el("thead"), el("tfoot")];
    head.append(this.head);
    foot.append(this.add);
    table.append(head, this.list, foot);
    this.scroll.append(table);
    this.card.body.append(this.scroll);
    carriesOut(store, this.preview, () => this.line);
    this.preview.addEventListener("click", () => this.clear());
  }

  draw(): void {
    const { head } = this.data;
    if (!head) return;
    const { trials } = this.data;
    this.card.empty = trials.length === 0;
    this.card.setCaption(head.more > 0 ? words.older(head.more) : "");
    const columns = JSON.stringify([head.id, head.names, head.monitor, head.calls, this.data.axes.map((axis) => [axis.name, axis.codes])]);
    if (columns !== this.told) {
      this.told = columns;
      this.name();
      this.rows.clear();
    }
    const ordered = this.ordered(trials);
    for (const number of this.rows.keys()) if (!ordered.some((trial) => trial.number === number)) this.rows.delete(number);
    const held = focusIn(this.list);
    const key = held?.dataset["key"];
    const rows = ordered.flatMap((trial) => {
      const open = this.opened.has(trial.number);
      const told = JSON.stringify([trial, open, head.best === trial.number, this.selection.trial === trial.number]);
      let entry = this.rows.get(trial.number);
      if (entry?.told !== told) this.rows.set(trial.number, (entry = { told, row: this.row(trial), more: open ? this.details(trial) : null }));
      return entry.more ? [entry.row, entry.more] : [entry.row];
    });
    // A row that stays in its place is not touched: it may just be clicked.
    rows.forEach((row, i) => {
      if (this.list.children[i] !== row) this.list.insertBefore(row, this.list.children[i] ?? null);
    });
    while (this.list.children.length > rows.length) this.list.lastElementChild?.remove();
    if (key && focusIn(this.list) === null) this.list.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
    for (const th of this.head.querySelectorAll("th")) {
      const by = th.dataset["by"];
      if (by !== undefined && by === this.sort?.by) th.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
  }

  // -- the table ---------------------------------------------------------------------------------

  private name(): void {
    const { names, monitor } = this.data.head!;
    const cells: [string, string][] = [["number", words.number], ["from", words.from], ...names.map((name): [string, string] => [`=${name}`, name]), ["share", words.length], ["value", monitor], ["fresh", words.fresh], ["state", words.state]];
    this.head.replaceChildren(...cells.map(([by, text]) => {
      const cell = el("th", NARROW[by] ?? "", "", { scope: "col", "data-by": by });
      const button = el("button", "wb-sort", text, { type: "button", title: words.sortBy(text) });
      button.addEventListener("click", () => this.sortBy(by));
      cell.append(button);
      return cell;
    }), el("td"));
    this.add.hidden = !this.data.head!.calls.includes("add");
    this.offerToAdd(names, cells.length);
  }

  private sortBy(by: string): void {
    const next: Sort = { by, down: false };
    this.sort = this.sort?.by !== by ? next : this.sort.down ? null : { by, down: true };
    this.store.setViewOption("study.sort", this.sort);
    this.draw();
  }

  /** Those that train, then the longest ones, and of these the best; or as a person chose. */
  private ordered(trials: StudyTrial[]): StudyTrial[] {
    const { sort } = this;
    const value = (trial: StudyTrial) => trial.value ?? NaN;
    if (!sort) return trials.sort((a, b) => Number(b.state === "trains") - Number(a.state === "trains") || b.share - a.share || order(value(a), value(b), (x, y) => this.data.better(x, y)) || a.number - b.number);
    const column = this.data.head!.names.indexOf(sort.by.slice(1));
    const key = (trial: StudyTrial): number | string => {
      if (sort.by.startsWith("=")) return trial.values[column] ?? "";
      if (sort.by === "fresh") return trial.fresh.length;
      const plain = trial[sort.by as "number" | "from" | "share" | "value" | "state"];
      return plain ?? NaN;
    };
    return trials.sort((a, b) => (sort.down ? -1 : 1) * compared(key(a), key(b)) || a.number - b.number);
  }

  private row(trial: StudyTrial): HTMLElement {
    const row = el("tr");
    const { best, baseline } = this.data.head!;
    row.toggleAttribute("data-selected", trial.number === this.selection.trial);
    row.toggleAttribute("data-best", trial.number === best);
    row.dataset["state"] = trial.state;
    const name = el("th", "", "", { scope: "row" });
    const select = el("button", "wb-study-pick", String(trial.number), { type: "button", "data-key": `pick-${trial.number}`, "aria-pressed": String(trial.number === this.selection.trial), "aria-label": words.pick(trial.number), title: words.pick(trial.number) });
    select.addEventListener("click", (event) => {
      event.stopPropagation();
      this.selection.choose(trial.number);
    });
    name.append(select);
    if (trial.number === best) name.append(el("span", "wb-study-mark", words.bestMark));
    if (trial.number === baseline) name.append(el("span", "wb-muted", words.baselineMark));
    const state = el("td", "wb-study-trial-state", words.doing(trial.state, trial.share, trial.seed));
    if (trial.cause) state.title = trial.cause;
    const actions = el("td", "wb-run-actions");
    actions.append(...this.actions(trial));
    row.append(name, el("td", NARROW["from"], trial.from), ...trial.values.map((text) => el("td", "", text, { title: text })), el("td", NARROW["share"], trial.value === null ? "" : words.rung(trial.share)), el("td", "wb-study-value", trial.value === null ? "" : number(trial.value)), el("td", NARROW["fresh"], trial.fresh.map(number).join(", ")), state, actions);
    row.addEventListener("click", (event) => {
      if (!(event.target as Element).closest("button")) this.selection.choose(trial.number);
    });
    return row;
  }

  private actions(trial: StudyTrial): HTMLElement[] {
    const { number: n } = trial;
    const open = el("button", "wb-tool", words.open, { type: "button", "data-key": `open-${n}`, "aria-expanded": String(this.opened.has(n)), title: words.openTooltip });
    open.addEventListener("click", () => {
      if (this.opened.has(n)) this.opened.delete(n);
      else this.opened.add(n);
      this.draw();
    });
    const out = [open];
    if (GOING.includes(trial.state)) out.push(...this.button(words.stopTrial, "stop", String(n)));
    if (trial.whole) out.push(...this.button(words.seeds, "seeds", `${n}, ${Math.max(SEEDS, trial.fresh.length + 1)}`), ...this.button(words.export, "export", `"trial-${n}.py", trial=${n}`));
    return out;
  }

  /** The button that calls a method of the study; none where nobody can carry it out. */
  private button(text: string, method: string, given: string): HTMLButtonElement[] {
    if (!this.data.head!.calls.includes(method)) return [];
    const code = `study.${method}(${given})`;
    return [carriesOut(this.store, el("button", "wb-tool", text, { type: "button", title: code, "data-key": code }), () => code)];
  }

  private details(trial: StudyTrial): HTMLElement {
    const [row, cell] = [el("tr", "wb-study-details"), el("td", "", "", { colspan: String(this.data.head!.names.length + 7) })];
    const facts = [words.fromOf(trial.from), trial.why, trial.cause, words.cost_(trial.cost.toFixed(2), clock(trial.seconds)), trial.run && words.runOf(trial.run)].filter(Boolean);
    cell.append(el("span", "", facts.join(texts.separator)), " ", ...this.showsRun(trial.run), ...this.button(words.repeat, "repeat", String(trial.number)));
    row.append(cell);
    return row;
  }

  /** In the panel of a bench a click puts the run on the stage; a study's own view has no place for it. */
  private showsRun(run: string): Node[] {
    if (!run || this.store.model.get("subject") !== "bench" || this.store.state.still) return [];
    const show = el("button", "wb-tool", words.showRun(run), { type: "button", title: words.showRunTooltip, "data-key": `show-${run}` });
    show.addEventListener("click", () => this.store.request("show", { run }));
    return [show, document.createTextNode(" ")];
  }

  // -- a trial by hand ---------------------------------------------------------------------------

  private offerToAdd(names: string[], width: number): void {
    const before = new Map([...this.boxes].map(([name, box]) => [name, box.value]));
    this.boxes.clear();
    const cells = names.map((name) => {
      const cell = el("td");
      const axis = this.data.axes.find((one) => one.name === name);
      const label = words.valueOf(name);
      const box = axis?.codes.length && axis.edits
        ? el("select", "wb-select", "", { "aria-label": label })
        : el("input", "wb-box", "", { type: "text", "aria-label": label, placeholder: name });
      if (box instanceof HTMLSelectElement) box.append(el("option", "", words.asNow, { value: "" }), ...axis!.choices.map((text, i) => el("option", "", text, { value: axis!.codes[i] ?? "" })));
      box.value = before.get(name) ?? "";
      box.addEventListener("input", () => this.offer());
      box.addEventListener("keydown", ((event: KeyboardEvent) => {
        event.stopPropagation(); // the notebook has commands on single keys
        if (event.key === "Enter" && this.line) this.preview.click();
      }) as EventListener);
      this.boxes.set(name, box);
      cell.append(box);
      return cell;
    });
    const last = el("td", "wb-study-add-line", "", { colspan: String(width - 2 - names.length + 1) });
    last.append(this.preview);
    this.add.replaceChildren(el("th", "", words.add, { scope: "row" }), el("td", NARROW["from"]), ...cells, last);
    this.offer();
  }

  private get line(): string {
    const values = [...this.boxes].flatMap(([name, box]) => {
      if (!box.value.trim()) return [];
      return [`${name}=${box instanceof HTMLSelectElement ? box.value : typed(box.value)}`];
    });
    return values.length ? `study.add(${values.join(", ")})` : "";
  }

  private offer(): void {
    const { line } = this;
    setText(this.preview, line || words.addHint);
    this.preview.setAttribute("aria-disabled", String(!line));
    this.preview.title = line ? words.run(line) : "";
  }

  private clear(): void {
    if (!this.line) return;
    for (const box of this.boxes.values()) box.value = "";
    this.offer();
  }
}

/** Numbers as `less` orders them; nothing comes last. */
function order(a: number, b: number, less: (a: number, b: number) => number): number {
  if (Number.isNaN(a) || Number.isNaN(b)) return Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  return less(a, b);
}

function compared(a: number | string, b: number | string): number {
  const [x, y] = [a === "" ? NaN : Number(a), b === "" ? NaN : Number(b)];
  if (typeof a === "number" || typeof b === "number" || (!Number.isNaN(x) && !Number.isNaN(y))) return order(x, y, (one, other) => one - other);
  return String(a).localeCompare(String(b), "en", { numeric: true });
}
