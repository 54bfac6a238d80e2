// One run in the Runs panel: its name, state and numbers, its sparkline, its settings and tags.

import { el, setText } from "../../../live/src/shared/dom";
import { spark } from "../../../live/src/runs/sparkline";
import { stateOf } from "../messages";
import type { Row } from "../messages";
import type { Texts } from "../texts";
import type { ListedRow } from "./list";
import { nameOf, progressOf, shapeOf, statusOf, whenOf } from "./words";

export class RowView {
  readonly root = el("div", "wb-side-row", "", { role: "option", tabindex: "-1" });
  private shown = "";

  constructor(private readonly texts: Texts) {}

  show(row: ListedRow): void {
    const shown = JSON.stringify(row);
    if (shown === this.shown) return; // selections and screen readers are left in peace
    this.shown = shown;
    this.root.dataset["run"] = row.run;
    this.root.dataset["status"] = stateOf(row);
    this.root.toggleAttribute("data-trouble", row.trouble !== null);
    if (row.notes) this.root.title = row.notes;
    else this.root.removeAttribute("title"); // that of the list
    this.root.replaceChildren(this.head(row), this.state(row), ...this.bar(row), this.numbers(row), ...this.more(row));
  }

  mark(selected: boolean, active: boolean): void {
    this.root.setAttribute("aria-selected", String(selected));
    this.root.tabIndex = active ? 0 : -1;
  }

  private head(row: Row): HTMLElement {
    const line = el("div", "wb-side-head");
    line.append(el("span", "wb-side-name", nameOf(row)));
    if (row.pinned) {
      const pin = el("span", "wb-side-pin", "★", { role: "img", "aria-label": this.texts.pinned });
      line.append(pin);
    }
    line.append(el("span", "wb-side-when", whenOf(row)));
    return line;
  }

  private state(row: Row): HTMLElement {
    const line = el("div", "wb-side-state");
    line.append(
      el("span", "wb-side-shape", shapeOf(row), { "aria-hidden": "true" }),
      el("span", "wb-side-status", statusOf(row, this.texts)),
      el("span", "wb-side-muted", progressOf(row, this.texts)),
    );
    if (row.trouble) line.append(el("b", "wb-side-trouble", row.trouble[1]));
    return line;
  }

  private bar(row: Row): HTMLElement[] {
    if (row.progress === null || !["running", "paused"].includes(stateOf(row))) return [];
    const bar = el("div", "wb-side-bar", "", { "aria-hidden": "true" }); // the line above says it
    const fill = el("i");
    fill.style.width = `${100 * row.progress}%`;
    bar.append(fill);
    return [bar];
  }

  private numbers(row: Row): HTMLElement {
    const line = el("div", "wb-side-numbers");
    if (row.spark.length > 0) line.append(spark(row.spark, row.dots));
    const values = el("span", "wb-side-values");
    if (row.loss) values.append(el("span", "", this.texts.loss(row.loss)));
    if (row.value) values.append(el("span", "", this.texts.best(row.metric, row.value)));
    if (row.answer) values.append(el("span", "", row.answer));
    line.append(values);
    return line;
  }

  private more(row: ListedRow): HTMLElement[] {
    const lines: HTMLElement[] = [];
    if (row.waits) lines.push(el("div", "wb-side-muted wb-side-line", row.waits));
    if (row.error) lines.push(el("div", "wb-side-error", row.error, { title: row.error }));
    const given = row.columns.map((name, i) => [name, row.cells[i] ?? ""] as const).filter(([, value]) => value !== "");
    const facts = given.map(([name, value]) => this.texts.setting(name, value));
    const origin = [row.name ? row.run : "", row.folder, row.study, row.from ? this.texts.from(row.from) : ""].filter(Boolean);
    for (const words of [origin, facts]) if (words.length > 0) lines.push(el("div", "wb-side-muted wb-side-line", words.join(" · ")));
    if (row.tags.length > 0) {
      const tags = el("div", "wb-side-tags", "", { role: "img", "aria-label": this.texts.tagsOf(row.tags) });
      tags.append(...row.tags.map((tag) => el("span", "wb-side-tag", tag)));
      lines.push(tags);
    }
    return lines;
  }
}

/** Set what a line of the panel says, and hide it where it says nothing. */
export function setLine(line: HTMLElement, text: string): void {
  line.hidden = text === "";
  setText(line, text);
}
