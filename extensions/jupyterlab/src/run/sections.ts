// Below the plots of a run: its facts, its settings, its checkpoints and its output, each to unfold.

import { el, setText } from "../../../live/src/shared/dom";
import { isLive, type Details } from "../messages";
import type { OutputText } from "./output";
import type { PaneTexts } from "./texts";

export class RunSections {
  readonly root = el("div", "wb-pane-sections");
  private readonly facts: Section;
  private readonly settings: Section;
  private readonly checkpoints: Section;
  private readonly printed: Section;
  private details: Details | null = null;

  constructor(private readonly texts: PaneTexts, private readonly output: OutputText) {
    this.facts = new Section(texts.facts);
    this.settings = new Section(texts.settings);
    this.checkpoints = new Section(texts.checkpoints);
    this.printed = new Section(texts.output);
    this.printed.body.append(output.root);
    this.printed.root.addEventListener("toggle", () => this.followOutput());
    this.root.append(...[this.facts, this.settings, this.checkpoints, this.printed].map(({ root }) => root));
  }

  draw(details: Details): void {
    this.details = details;
    const { texts } = this;
    const notes: [string, string][] = details.row.notes ? [[texts.notes, details.row.notes]] : [];
    this.facts.draw([...details.facts, ...notes], (facts) => [list(facts)]);
    this.settings.draw({ settings: details.settings, changes: details.changes }, (of) => this.settingsOf(of));
    this.checkpoints.draw(details.checkpoints, (checkpoints) => this.checkpointsOf(checkpoints), String(details.checkpoints.length));
    this.printed.root.hidden = !details.output;
    this.followOutput();
  }

  private followOutput(): void {
    const { details, output } = this;
    if (details?.output && this.printed.root.open) output.follow(isLive(details.row));
    else output.stop();
  }

  private settingsOf({ settings, changes }: Pick<Details, "settings" | "changes">): HTMLElement[] {
    const { texts } = this;
    const differ = settings.filter((one) => !one.default), same = settings.filter((one) => one.default);
    const rows = (some: Details["settings"]) => some.map(({ name, text }) => [name, text]);
    const parts = [differ.length ? table(texts.changed, [texts.columns.name, texts.columns.value], rows(differ)) : el("p", "wb-pane-quiet", texts.allDefault)];
    if (changes.length) parts.push(table(texts.changes, [texts.columns.step, texts.columns.value], changes.map(([step, text]) => [texts.atUpdate(step), text])));
    if (same.length) {
      const rest = el("details", "wb-pane-defaults");
      rest.append(el("summary", "", texts.defaults(same.length)), table(texts.defaults(same.length), [texts.columns.name, texts.columns.value], rows(same), true));
      parts.push(rest);
    }
    return parts;
  }

  private checkpointsOf(checkpoints: Details["checkpoints"]): HTMLElement[] {
    const { texts } = this;
    const { name, step, what, size } = texts.columns;
    if (!checkpoints.length) return [el("p", "wb-pane-quiet", texts.noCheckpoints)];
    return [table(texts.checkpoints, [name, step, what, size], checkpoints.map((one) => [one.name, String(one.step), one.what, texts.size(one.bytes)]), true)];
  }
}

/** A part to unfold. It is drawn again only where its data have changed: selections and the keyboard's focus stay. */
class Section {
  readonly root = el("details", "wb-pane-section");
  readonly body = el("div", "wb-pane-section-body");
  private readonly count = el("span", "wb-pane-quiet");
  private drawn = "";

  constructor(title: string) {
    const summary = el("summary");
    summary.append(el("h3", "", title), this.count);
    this.root.append(summary, this.body);
  }

  draw<T>(data: T, content: (data: T) => HTMLElement[], count = ""): void {
    const now = JSON.stringify(data);
    if (now === this.drawn) return;
    this.drawn = now;
    setText(this.count, count);
    this.body.replaceChildren(...content(data));
  }
}

function list(facts: [string, string][]): HTMLElement {
  const made = el("dl");
  for (const [label, text] of facts) made.append(el("dt", "", label), el("dd", "", text));
  return made;
}

/** quiet: the caption is for screen readers, since the same stands above. */
function table(title: string, columns: string[], rows: string[][], quiet = false): HTMLElement {
  const made = el("table");
  const [head, body] = [el("thead"), el("tbody")];
  const names = el("tr");
  names.append(...columns.map((column) => el("th", "", column, { scope: "col" })));
  head.append(names);
  for (const [first = "", ...cells] of rows) {
    const row = el("tr");
    row.append(el("th", "", first, { scope: "row" }), ...cells.map((cell) => el("td", "", cell)));
    body.append(row);
  }
  made.append(el("caption", quiet ? "wb-pane-spoken" : "", title), head, body);
  return made;
}
