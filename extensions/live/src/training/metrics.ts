// The user's metrics in the card of the loss: those of one quantity are one tab, with best and last values below.

import type { Card, KeyItem } from "../shared/card";
import { changes } from "./setting-changes";
import { el, focusIn } from "../shared/dom";
import { number } from "../shared/format";
import type { FitAxis } from "../plot/axis";
import type { Subject } from "../plot/frame";
import type { Measure } from "./measures";
import type { Layer, Value } from "../plot/layers";
import type { PaletteOf } from "../plot/scales";
import { smoothed, type Span } from "../plot/smooth";
import type { Store } from "../data/store";
import { DASHES, pickColour } from "../shared/theme";
import type { Metric } from "../data/messages";
import { texts } from "../texts";

const FEW = 60; // points that are drawn as dots, too
const ALIKE = /^(train|val|test)_|_(epoch|step|averaged)$/g; // what tells apart metrics of one thing
const { metrics: words } = texts;

export class Metrics {
  /** Below the plot: the best and the last values, and which of them judges checkpoints. */
  readonly root = el("ul", "wb-metrics", "", { "aria-label": words.label });
  private told = "";
  private readonly subjects = new Map<string, Subject>();

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly axis: FitAxis,
    private readonly card: Card,
    private readonly span: () => Span,
  ) {}

  /** The things that are measured, each a tab. */
  get names(): string[] {
    return [...new Set(this.all.map(({ name }) => thing(name)))];
  }

  keys(tab: string): KeyItem[] {
    return this.of(tab).map(([{ name }], i) => ({ name, swatch: `pick${i % DASHES.length}`, room: 8 }));
  }

  /** The first metric of a tab, for its sparkline. */
  measure(tab: string): Measure {
    const [first] = this.of(tab);
    return { tab, name: tab, value: first?.[0].last ?? "", values: first ? this.store.metrics.rows.line(first[1]) : [] };
  }

  subject(tab: string): Subject {
    let subject = this.subjects.get(tab);
    if (!subject) this.subjects.set(tab, (subject = this.describe(tab)));
    return subject;
  }

  /** The line below the plot of this tab; null: the plot is of something else. */
  draw(tab: string | null): void {
    this.root.hidden = tab === null;
    if (tab === null) return;
    const metrics = this.of(tab).map(([metric]) => metric);
    const now = JSON.stringify([metrics, this.store.state.metrics?.monitor, this.store.state.followed]);
    if (now === this.told) return;
    this.told = now;
    const held = focusIn(this.root)?.dataset["key"];
    this.root.replaceChildren(...metrics.map((metric) => this.item(metric)));
    if (held) this.root.querySelector<HTMLElement>(`[data-key="${CSS.escape(held)}"]`)?.focus();
  }

  private get all(): Metric[] {
    const { metrics = [] } = this.store.state.metrics ?? {};
    return this.store.metrics.rows.columns >= metrics.length ? metrics : []; // their columns are on the way
  }

  private of(tab: string): [Metric, number][] {
    return this.all.map((metric, column): [Metric, number] => [metric, column]).filter(([{ name }]) => thing(name) === tab);
  }

  private describe(tab: string): Subject {
    const { store, axis } = this;
    return {
      name: tab,
      places: () => axis.places(store.metrics.rows.steps()),
      layers: () => this.layers(tab),
      across: () => axis.across,
      up: tab,
      fit: () => this.of(tab).flatMap(([, column]) => store.metrics.rows.line(column)),
      read: (hovered) => this.read(tab, hovered),
      words: () => this.card.placed(),
      step: (place) => axis.step(place),
      place: (step) => axis.place(step),
    };
  }

  private layers(tab: string): Layer[] {
    const { store, axis } = this;
    const rows = store.metrics.rows;
    const x = axis.places(rows.steps());
    const layers = this.of(tab).flatMap(([{ name }, column], i): Layer[] => {
      const colour = pickColour(this.colours(), i);
      const values = rows.line(column);
      const dash = DASHES[i % DASHES.length] as number[];
      const [few, span] = [values.filter((value) => value !== null).length <= FEW, this.span()];
      const raw: Layer = { name, kind: "line", x, y: values, colour, width: 1.75, dash, joined: true };
      if (few && (span === "auto" || span === 0)) return [raw, { name, kind: "dots", x, y: values, colour, size: 2.5 }];
      if (span === 0) return [raw];
      const mean: Layer = { ...raw, name: "", y: smoothed(values, span, rows.width) };
      return [{ ...raw, alpha: 0.3, width: 1, dash: [] }, mean];
    });
    return [...layers, changes(store, axis, this.colours())];
  }

  private read(tab: string, hovered: number | null): void {
    const { rows } = this.store.metrics;
    for (const [{ name, last }, column] of this.of(tab)) {
      this.card.setValue(name, hovered === null ? last : number(before(rows.line(column), hovered)));
    }
    this.card.setAt(hovered === null ? "" : this.axis.at(this.axis.place(rows.step(hovered))));
    this.card.setCaption("");
  }

  private item({ name, mode, best, last, judges, at: step }: Metric): HTMLElement {
    const item = el("li");
    const value = el("span", "", words.last(last));
    const top = best ? el("span", "", words.best(best, step)) : "";
    item.append(el("span", "wb-metric-name", name, { title: name }), top, value);
    if (!judges || this.store.state.followed) return item;
    const on = this.store.state.metrics?.monitor === name;
    const choices: ("min" | "max" | null)[] = mode !== null || on ? [null] : ["min", "max"]; // null: what its name says
    for (const wanted of choices) {
      const text = on ? words.monitored : wanted === null ? words.monitor : words.monitorBy(words.better[wanted]);
      const button = el("button", "wb-tool", text, {
        type: "button", "aria-pressed": String(on), "data-key": `${name} ${wanted ?? ""}`, "aria-label": words.monitorLabel(text, name),
        title: words.monitorTooltip(name, mode === null ? "" : words.better[mode]),
      });
      button.addEventListener("click", () => { if (!on) this.store.request("monitor", { name, mode: wanted }); });
      item.append(button);
    }
    return item;
  }
}

/** What a metric is of: "accuracy" of "val_accuracy" and "train_accuracy_epoch". */
function thing(name: string): string {
  return name.replace(ALIKE, "").replace(ALIKE, "") || name;
}

/** The last value up to a row. */
function before(values: Value[], row: number): number {
  for (let i = row; i >= 0; i -= 1) if (values[i] != null) return values[i] as number;
  return NaN;
}
