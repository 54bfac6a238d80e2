// A sparkline with the last value for the loss and for each metric, beside the plot; a click draws that one large.

import { el, focusIn, setText } from "../shared/dom";
import type { Value } from "../plot/layers";
import { spark } from "../runs/sparkline";
import { texts } from "../texts";

const POINTS = 40;
const HIGHEST = 99; // heights of a sparkline go from 0 to this

export interface Measure {
  /** What `choose` gets. */
  tab: string;
  name: string;
  value: string;
  values: Value[];
}

export class Measures {
  readonly root = el("div", "wb-quantities", "", { role: "group", "aria-label": texts.loss.tabs });
  private readonly lines = new Map<string, Line>();

  constructor(private readonly choose: (tab: string) => void) {}

  draw(measures: Measure[], chosen: string): void {
    this.root.hidden = measures.length < 2;
    const held = focusIn(this.root)?.dataset["tab"];
    for (const [tab, line] of this.lines) {
      if (measures.some((measure) => measure.tab === tab)) continue;
      line.root.remove();
      this.lines.delete(tab);
      if (held === tab) (this.root.firstElementChild as HTMLElement | null)?.focus();
    }
    for (const measure of measures) {
      let line = this.lines.get(measure.tab);
      if (!line) {
        this.lines.set(measure.tab, (line = new Line(measure, this.choose)));
        this.root.append(line.root);
      }
      line.draw(measure, measure.tab === chosen);
    }
  }
}

class Line {
  readonly root: HTMLButtonElement;
  private readonly value = el("b");
  private readonly drawing = el("span", "wb-quantity-line");
  private drawn = "";

  constructor({ tab, name }: Measure, choose: (tab: string) => void) {
    this.root = el("button", "wb-quantity", "", { type: "button", "data-tab": tab });
    this.root.append(el("span", "wb-quantity-name", name, { title: name }), this.drawing, this.value);
    this.root.addEventListener("click", () => choose(tab));
  }

  draw({ value, values }: Measure, isChosen: boolean): void {
    this.root.setAttribute("aria-pressed", String(isChosen));
    setText(this.value, value);
    const line = heights(values);
    const now = line.join();
    if (now === this.drawn) return;
    this.drawn = now;
    this.drawing.replaceChildren(spark(line, []));
  }
}

/** Heights of a sparkline through these values. */
function heights(values: Value[]): number[] {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  const every = Math.max(1, known.length / POINTS);
  const points = Array.from({ length: Math.min(POINTS, known.length) }, (_, i) => known[Math.min(known.length - 1, Math.round((i + 1) * every) - 1)] as number);
  const [low, high] = [Math.min(...points), Math.max(...points)];
  return points.map((value) => Math.round(high > low ? (HIGHEST * (value - low)) / (high - low) : HIGHEST / 2));
}
