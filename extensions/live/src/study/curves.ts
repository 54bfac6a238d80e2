// The metric of each trial over its updates, with the lengths at which trials are compared.

import type uPlot from "uplot";
import { Card } from "../shared/card";
import { number, steps } from "../shared/format";
import { Frame } from "../plot/frame";
import type { Layer } from "../plot/layers";
import { csvOf, svgOf } from "../plot/save";
import { WHOLE, type PaletteOf } from "../plot/scales";
import { logToggle, plotTools } from "../plot/toolbar";
import type { Store } from "../data/store";
import type { StudyCurve } from "../data/messages";
import { texts } from "../texts";
import type { Selection, StudyData } from "./data";
import { nearest, type Spot, spotsOf } from "./nearest";

const { study: words } = texts;
const HEIGHT = 176;
const EARLY = 0.08; // of the longest curve
type Curve = StudyCurve & { number: number };

export class Curves {
  readonly card = new Card(words.curves, words.curvesHint, "study-curves");
  private readonly frame: Frame;
  private readonly log: ReturnType<typeof logToggle>;
  private curves: Curve[] = [];
  private places: number[] = [];

  constructor(store: Store, private readonly data: StudyData, private readonly colours: PaletteOf, private readonly selection: Selection) {
    const label = texts.axis.names.update;
    this.frame = new Frame(this.card.body, colours, {
      name: words.curves,
      height: HEIGHT,
      places: () => this.places,
      layers: () => this.layers(),
      across: () => ({ label, words: (step) => steps(Math.round(step)), incrs: WHOLE }),
      up: "",
      fit: () => this.heights(),
      read: (at) => this.readout(at),
      words: () => texts.plot.reading(texts.axis.place(label, steps(this.places[this.frame.plot?.cursor.idx ?? 0] ?? 0)), this.card.reading()),
      made: (plot) => this.clickable(plot),
    }, null, "auto");
    this.log = logToggle(store, "study.curves.log", this.frame, "auto");
    this.card.tools.append(this.log.root);
    plotTools(this.card, "study-trials", {
      svg: () => svgOf(this.frame, words.curves, colours()),
      csv: () => csvOf(label, this.layers()),
    }, this.frame);
  }

  draw(): void {
    this.curves = this.data.curves.filter((curve) => curve.x.length > 0);
    this.card.empty = this.curves.length === 0;
    if (!this.curves.length) return;
    this.places = [...new Set(this.curves.flatMap((curve) => [...curve.x, ...curve.ends.map(([step]) => step)]))].sort((a, b) => a - b);
    this.card.setKey(this.named().map(([curve, name, swatch]) => ({ name: name(curve.number), swatch, room: 8 })));
    this.frame.what.up = this.data.head?.monitor ?? "";
    this.frame.draw();
    this.log.draw();
    this.readout(this.frame.plot?.cursor.idx ?? null);
  }

  redraw(): void {
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  /** The values that the plot has to show: the first ones, which are far from all others, may lie above it. */
  private heights(): (number | null)[] {
    const from = EARLY * (this.places.at(-1) ?? 0);
    return this.curves.flatMap(({ x, y, ends }) => [...y.filter((_, i) => (x[i] as number) >= from), ...ends.map(([, value]) => value)]);
  }

  /** The curves that the key names: the best one, the baseline, the one that is selected. */
  private named(): [Curve, (trial: number) => string, string][] {
    const { best, baseline } = this.data.head!;
    const marked: [number | null, (trial: number) => string, string][] = [
      [this.selection.trial, words.selected, "study-selected"],
      [best, words.bestTrial, "found"],
      [baseline, words.baselineTrial, "study-baseline"],
    ];
    const seen = new Set<number>();
    return marked.flatMap(([trial, name, swatch]): [Curve, (trial: number) => string, string][] => {
      const curve = this.curves.find((one) => one.number === trial);
      if (!curve || seen.has(curve.number)) return [];
      seen.add(curve.number);
      return [[curve, name, swatch]];
    });
  }

  private layers(): Layer[] {
    const { found, val, chosen, muted, line } = this.colours();
    const { rungs, places } = this.data.head!;
    const going = new Set(this.data.trials.filter((trial) => trial.state === "trains").map((trial) => trial.number));
    const colours: Record<string, string> = { found, "study-baseline": val, "study-selected": chosen };
    const named = this.named();
    const others = this.curves.filter((curve) => !named.some(([one]) => one === curve));
    const halts = rungs.flatMap((rung, i) => (places[i] == null || rung >= 1 ? [] : [[places[i] as number, words.rung(rung)] as const]));
    const rules: Layer = { name: "", kind: "rules", x: halts.map(([x]) => x), y: halts.map(() => null), texts: halts.map(([, text]) => text), colour: muted, alpha: 0.7 };
    return [
      rules,
      ...others.flatMap((curve) => curveLayers(curve, words.trial(curve.number), going.has(curve.number) ? line : muted, going.has(curve.number) ? 0.95 : 0.38, 1.1)),
      ...named.reverse().flatMap(([curve, name, swatch]) => curveLayers(curve, name(curve.number), colours[swatch] as string, 1, 2)),
    ];
  }

  private readout(at: number | null): void {
    const x = at === null ? Infinity : (this.places[at] as number);
    for (const [curve, name] of this.named()) {
      let k = curve.x.length - 1;
      while (k > 0 && (curve.x[k] as number) > x) k -= 1;
      this.card.setValue(name(curve.number), number(curve.y[k] ?? NaN));
    }
  }

  /** A click selects the trial whose curve is nearest. */
  private clickable(plot: uPlot): void {
    nearest(plot, () => this.curves.flatMap((curve): Spot[] => spotsOf(curve.x, curve.y, curve.number)), (trial) => this.selection.choose(trial));
  }
}

/** A curve, and dots where it was compared. */
function curveLayers({ x, y, ends }: Curve, name: string, colour: string, alpha: number, width: number): Layer[] {
  return [
    { name, kind: "line", x, y, colour, alpha, width },
    { name: words.compared(name), kind: "dots", x: ends.map(([step]) => step), y: ends.map(([, value]) => value), colour, alpha: Math.min(1, alpha + 0.25), size: width + 1 },
  ];
}
