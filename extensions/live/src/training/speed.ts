// The card of speed and memory over the course of a run.

import { Card } from "../shared/card";
import { bytes, pace } from "../shared/format";
import type { FitAxis } from "../plot/axis";
import { DONE, MEMORY, SAMPLES, SECONDS } from "../plot/axis";
import { Frame } from "../plot/frame";
import type { Hover } from "../plot/hover";
import type { Layer, Value } from "../plot/layers";
import { csvOf, svgOf } from "../plot/save";
import { rangeOf, type PaletteOf } from "../plot/scales";
import { smoothed, type Smoothing } from "../plot/smooth";
import { axisChoice, options, plotTools, smoothing } from "../plot/toolbar";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { speed: words } = texts;
const LEAST = 0.05; // seconds from one point to the next: the times of shorter stretches say little

interface Points {
  steps: number[];
  speed: Value[];
  memory: Value[];
}

export class Speed {
  readonly card = new Card(words.title, words.hint, "pace");
  private readonly frame: Frame;
  private readonly smoothing: Smoothing;
  private readonly across: { draw: () => void };
  private points: Points = { steps: [], speed: [], memory: [] };
  private unit = "";

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly axis: FitAxis,
    hover: Hover,
  ) {
    this.frame = new Frame(this.card.body, colours, {
      name: words.title,
      places: () => axis.places(this.points.steps),
      layers: () => this.layers(),
      across: () => axis.across,
      up: words.up,
      fit: () => this.points.speed,
      range: () => [0, rangeOf(known([...this.points.speed, 0]))[1]],
      right: { label: words.memory, words: bytes, fit: () => [0, ...this.points.memory] },
      read: (at) => this.read(at),
      words: () => this.card.placed(),
      step: (place) => axis.step(place),
      place: (step) => axis.place(step),
      above: () => 10,
    }, hover);
    this.smoothing = smoothing(store, "speed.smoothing", "auto", () => this.draw());
    const across = axisChoice(axis);
    this.across = across;
    this.card.tools.append(across.root, options(this.smoothing.root));
    plotTools(this.card, "speed-and-memory", {
      svg: () => svgOf(this.frame, words.title, colours()),
      csv: () => csvOf(axis.across.label, this.layers()),
    }, this.frame);
    axis.listen(() => {
      this.frame.whole();
      this.draw();
    });
  }

  draw(): void {
    this.measure();
    this.card.empty = this.points.steps.length < 2;
    if (this.points.steps.length < 2) return;
    this.frame.draw();
    this.across.draw();
    this.read(this.frame.plot?.cursor.idx ?? null);
  }

  redraw(): void {
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  /** The speed between rows of the clock that lie far enough apart, each at the update in their middle. */
  private measure(): void {
    const rows = this.store.clock.rows;
    const counted = rows.count > 1 && Number.isFinite(rows.at(rows.count - 1, SAMPLES));
    const of = counted ? SAMPLES : DONE;
    this.points = { steps: [], speed: [], memory: [] };
    let from = 0;
    for (let row = 1; row < rows.count; row += 1) {
      const seconds = rows.at(row, SECONDS) - rows.at(from, SECONDS);
      if (!(seconds >= LEAST)) continue;
      const [memory, speed] = [rows.at(row, MEMORY), (rows.at(row, of) - rows.at(from, of)) / seconds];
      this.points.steps.push((rows.at(from, DONE) + rows.at(row, DONE)) / 2);
      this.points.speed.push(speed > 0 ? speed : null);
      this.points.memory.push(Number.isFinite(memory) ? memory : null);
      from = row;
    }
    const unit = counted ? words.samples : words.updates;
    if (unit === this.unit) return;
    this.unit = unit;
    this.card.setKey([{ name: unit, swatch: "line", room: 8 }, { name: words.memory, swatch: "peak", room: 9 }]);
  }

  private layers(): Layer[] {
    const { line, faint, peak } = this.colours();
    const x = this.axis.places(this.points.steps);
    return [
      { name: this.unit, kind: "line", x, y: this.points.speed, colour: faint, width: 1, joined: true },
      { name: "", kind: "line", x, y: smoothed(this.points.speed, this.smoothing.span, 1), colour: line, width: 2, joined: true },
      { name: words.memory, kind: "line", x, y: this.points.memory, colour: peak, dash: [7, 4], scale: "y2", joined: true },
    ];
  }

  private read(hovered: number | null): void {
    const { steps, speed, memory } = this.points;
    const i = hovered ?? steps.length - 1;
    this.card.setValue(this.unit, pace(speed[i] ?? NaN));
    this.card.setValue(words.memory, bytes(memory[i] ?? NaN));
    this.card.setAt(hovered === null ? "" : this.axis.at(this.axis.place(steps[i] as number)));
  }
}

function known(values: Value[]): number[] {
  return values.filter((value): value is number => value !== null);
}
