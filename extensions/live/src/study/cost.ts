// The best value so far against what the study had spent: a line that has been flat for long says that more trials gain little.

import { Card } from "../shared/card";
import { number } from "../shared/format";
import { Frame } from "../plot/frame";
import type { Layer } from "../plot/layers";
import { csvOf, svgOf } from "../plot/save";
import type { PaletteOf } from "../plot/scales";
import { plotTools } from "../plot/toolbar";
import type { StudyTrial } from "../data/messages";
import { texts } from "../texts";
import type { Selection, StudyData } from "./data";
import { nearest } from "./nearest";

const { study: words } = texts;
const HEIGHT = 176;
type Valued = StudyTrial & { value: number };

export class Cost {
  readonly card = new Card(words.cost, words.costHint, "study-cost");
  private readonly frame: Frame;
  private trials: Valued[] = [];

  constructor(private readonly data: StudyData, private readonly colours: PaletteOf, private readonly selection: Selection) {
    this.frame = new Frame(this.card.body, colours, {
      name: words.cost,
      height: HEIGHT,
      places: () => this.trials.map((trial) => trial.spent),
      layers: () => this.layers(),
      across: () => ({ label: words.fitsSpent, words: (fits) => String(Number(fits.toPrecision(3))), range: () => [0, Math.max(this.budget, this.trials.at(-1)?.spent ?? 0, 1e-6) * 1.02] }),
      up: "",
      fit: () => this.best().map(([, value]) => value).concat(this.whole().map((trial) => trial.value)),
      read: (at) => this.readout(at),
      words: () => this.card.placed(),
      made: (plot) => nearest(plot, () => this.trials.map((trial) => ({ x: trial.spent, y: trial.value, trial: trial.number })), (trial) => this.selection.choose(trial)),
    }, null, "auto");
    this.card.setKey([{ name: words.bestSoFar, swatch: "found", room: 8 }, { name: words.wholeFits, swatch: "dots" }, { name: words.baseline, swatch: "study-baseline" }]);
    plotTools(this.card, "study-cost", {
      svg: () => svgOf(this.frame, words.cost, colours()),
      csv: () => csvOf(words.fitsSpent, this.layers()),
    }, this.frame);
  }

  draw(): void {
    const valued = this.data.trials.filter((trial): trial is Valued => trial.value !== null);
    this.trials = valued.sort((a, b) => a.spent - b.spent || a.number - b.number);
    this.card.empty = this.whole().length === 0;
    if (this.card.root.classList.contains("wb-empty")) return;
    this.frame.what.up = this.data.head?.monitor ?? "";
    this.frame.draw();
    this.readout(this.frame.plot?.cursor.idx ?? null);
  }

  redraw(): void {
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  /** In whole fits; a budget in time has none. */
  private get budget(): number {
    const { now } = this.data;
    return now?.unit === "fits" ? now.budget : 0;
  }

  private whole(): Valued[] {
    return this.trials.filter((trial) => trial.whole);
  }

  /** What was spent, and the best whole fit by then. */
  private best(): [number, number][] {
    const out: [number, number][] = [];
    for (const { spent, value } of this.whole()) {
      const before = out.at(-1)?.[1];
      out.push([spent, before === undefined || this.data.better(value, before) < 0 ? value : before]);
    }
    return out;
  }

  private layers(): Layer[] {
    const { found, dots, val, chosen, muted } = this.colours();
    const [best, whole] = [stepped(this.best(), this.data.now?.fits ?? 0), this.whole()];
    const { baseline_value: baseline } = this.data.head!;
    const shorter = this.trials.filter((trial) => !trial.whole);
    const picked = this.trials.filter((trial) => trial.number === this.selection.trial);
    const at = (trials: Valued[]) => ({ x: trials.map((trial) => trial.spent), y: trials.map((trial) => trial.value) });
    const end = Math.max(this.budget, this.trials.at(-1)?.spent ?? 0);
    const level: Layer[] = baseline === null ? [] : [{ name: words.baseline, kind: "line", x: [0, end], y: [baseline, baseline], colour: val, dash: [5, 4], width: 1.25 }];
    return [
      ...level,
      { name: words.shorter, kind: "dots", ...at(shorter), colour: muted, shape: "ring", size: 2.5, alpha: 0.55 },
      { name: words.wholeFits, kind: "dots", ...at(whole), colour: dots, size: 3.5 },
      { name: words.bestSoFar, kind: "line", x: best.map(([x]) => x), y: best.map(([, y]) => y), colour: found, width: 2 },
      { name: "", kind: "dots", ...at(picked), colour: chosen, size: 5 },
    ];
  }

  private readout(at: number | null): void {
    const spent = at === null ? Infinity : (this.trials[at]?.spent ?? Infinity);
    const last = this.best().filter(([x]) => x <= spent).at(-1);
    this.card.setValue(words.bestSoFar, last ? number(last[1]) : "");
    const trial = at === null ? undefined : this.trials[at];
    this.card.setAt(trial ? words.atTrial(trial.number, number(trial.value)) : "");
  }
}

/** Each value holds until the next one, and the last one until now. */
function stepped(points: [number, number][], now: number): [number, number][] {
  const out: [number, number][] = [];
  for (const [x, y] of points) {
    const before = out.at(-1);
    if (before) out.push([x, before[1]]);
    out.push([x, y]);
  }
  const last = out.at(-1);
  if (last && now > last[0]) out.push([now, last[1]]);
  return out;
}
