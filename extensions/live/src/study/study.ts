// The view of a study: its state, its plots, what to do next, its trials. It stands in a cell of its own, or on the stage of a bench.

import { el } from "../shared/dom";
import type { Drawer } from "../draw-scheduler";
import type { PaletteOf } from "../plot/scales";
import type { Store } from "../data/store";
import { texts } from "../texts";
import { Cost } from "./cost";
import { Curves } from "./curves";
import { Selection, StudyData } from "./data";
import { Head } from "./head";
import { Importance } from "./importance";
import { Next } from "./next";
import { Slices } from "./slices";
import { Trials } from "./trials";

export class StudyView {
  readonly root = el("section", "wb-study", "", { "aria-label": texts.study.label });
  private readonly head: Head;
  private readonly curves: Curves;
  private readonly cost: Cost;
  private readonly next: Next;
  private readonly slices: Slices;
  private readonly importance: Importance;
  private readonly trials: Trials;

  constructor(store: Store, colours: PaletteOf) {
    const [data, selection] = [new StudyData(store), new Selection()];
    this.head = new Head(store, data);
    this.curves = new Curves(store, data, colours, selection);
    this.cost = new Cost(data, colours, selection);
    this.next = new Next(store);
    this.slices = new Slices(store, data, selection);
    this.importance = new Importance(store);
    this.trials = new Trials(store, data, selection);
    const grid = el("div", "wb-study-grid");
    grid.append(...[this.curves, this.cost, this.next, this.slices, this.importance, this.trials].map(({ card }) => card.root));
    this.root.append(this.head.root, grid);
    selection.listen(() => [this.curves, this.cost, this.slices, this.trials].forEach((part) => part.draw()));
  }

  /** What draws it, and when; `shown`: whether it is in sight. */
  drawers(shown: () => boolean): Drawer[] {
    const known = ["study", "study_trial"] as const;
    return [
      { topics: [...known, "study_now"], draw: () => this.head.draw(), shown },
      { topics: [...known, "study_curve"], draw: () => this.curves.draw(), plot: true, shown },
      { topics: [...known], draw: () => this.cost.draw(), plot: true, shown },
      { topics: ["study_words"], draw: () => this.next.draw(), shown },
      { topics: [...known, "study_space"], draw: () => this.slices.draw(), plot: true, shown },
      { topics: ["study_importance"], draw: () => this.importance.draw(), shown },
      { topics: [...known, "study_space"], draw: () => this.trials.draw(), shown },
    ];
  }

  redraw(): void {
    this.curves.redraw();
    this.cost.redraw();
  }

  destroy(): void {
    this.curves.destroy();
    this.cost.destroy();
    this.slices.destroy();
  }
}
