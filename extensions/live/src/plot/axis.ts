// The horizontal axis that all plots of a run share: updates, epochs, samples or time, as the person chose.

import { clock, number, steps } from "../shared/format";
import type { Store } from "../data/store";
import { CLOCK, WHOLE } from "./scales";
import { texts } from "../texts";

export const AXES = ["update", "epoch", "samples", "time"] as const;
const { names } = texts.axis;
export type AxisName = (typeof AXES)[number];
// Columns of "clock", in the order of workbench/ui/canvas/clock.py.
export const DONE = 0, EPOCHS = 1, SAMPLES = 2, SECONDS = 3, MEMORY = 4;
const COLUMN: Record<AxisName, number> = { update: DONE, epoch: EPOCHS, samples: SAMPLES, time: SECONDS };
const BRIEF = 5; // seconds; a clock has no words for parts of one

export interface Across {
  label: string;
  words: (value: number) => string;
  /** How far apart the numbers on the axis may lie. */
  incrs?: number[];
  range?: () => [number, number];
}

export class FitAxis {
  private readonly listeners = new Set<() => void>();

  constructor(private readonly store: Store) {}

  /** Those that are known of this fit. */
  get choices(): AxisName[] {
    const rows = this.store.clock.rows;
    return AXES.filter((name) => name === "update" || (rows.count > 1 && Number.isFinite(rows.at(rows.count - 1, COLUMN[name]))));
  }

  get name(): AxisName {
    const wanted = this.store.viewOption<AxisName>("axis", "update");
    return this.choices.includes(wanted) ? wanted : "update";
  }

  choose(name: AxisName): void {
    this.store.setViewOption("axis", name);
    this.listeners.forEach((listener) => listener());
  }

  listen(listener: () => void): void {
    this.listeners.add(listener);
  }

  /** All plots of a fit reach as far as its updates. */
  get across(): Across {
    return { ...this.numbers, range: () => this.range() };
  }

  private range(): [number, number] {
    const rows = this.store.fit.rows;
    const [low = 0, high = 1] = rows.count ? this.places([rows.step(0), rows.step(rows.count - 1)]) : [];
    return high > low ? [low, high] : [low, low + 1];
  }

  private get numbers(): Across {
    const { name } = this;
    if (name === "update") return { label: names.update, words: (step) => steps(Math.round(step)), incrs: WHOLE };
    if (name === "epoch") return { label: names.epoch, words: (epoch) => String(Number(epoch.toPrecision(4))) };
    if (name === "samples") return { label: names.samples, words: steps, incrs: WHOLE };
    const rows = this.store.clock.rows;
    const brief = !(rows.at(rows.count - 1, SECONDS) - rows.at(0, SECONDS) >= BRIEF);
    return brief ? { label: names.time, words: (seconds) => texts.seconds(number(seconds)) } : { label: names.time, words: clock, incrs: CLOCK };
  }

  /** Names a place on the axis: "at update 312", "at epoch 2.5", "at time 00:41". */
  at(place: number): string {
    const { label, words } = this.across;
    return texts.axis.at(label, words(place));
  }

  /** The same without "at". */
  named(place: number): string {
    const { label, words } = this.across;
    return texts.axis.place(label, words(place));
  }

  /** Places of updates on the axis; `numbers` rises. */
  places(numbers: ArrayLike<number>): number[] {
    const { name } = this;
    if (name === "update") return numbers as number[];
    return this.between(numbers, DONE, COLUMN[name]);
  }

  place(step: number): number {
    return this.places([step])[0] as number;
  }

  /** The update at a place on the axis. */
  step(place: number): number {
    const { name } = this;
    return name === "update" ? place : (this.between([place], COLUMN[name], DONE)[0] as number);
  }

  /** From a value of one column to that of another, on straight lines between the rows, and on beyond the last one. */
  private between(values: ArrayLike<number>, from: number, to: number): number[] {
    const rows = this.store.clock.rows;
    const out: number[] = [];
    let row = 1;
    for (let i = 0; i < values.length; i += 1) {
      const value = values[i] as number;
      while (row < rows.count - 1 && rows.at(row, from) < value) row += 1;
      const [a, b] = [rows.at(row - 1, from), rows.at(row, from)];
      const [c, d] = [rows.at(row - 1, to), rows.at(row, to)];
      out.push(b > a ? c + ((value - a) / (b - a)) * (d - c) : d);
    }
    return out;
  }
}
