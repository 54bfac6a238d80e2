// Draws the learning rate of each optimizer below the loss, on demand.

import { el, setText } from "../shared/dom";
import { rate } from "../shared/format";
import type { FitAxis } from "../plot/axis";
import { Frame } from "../plot/frame";
import type { Hover } from "../plot/hover";
import type { Layer } from "../plot/layers";
import { rangeOf, type PaletteOf } from "../plot/scales";
import type { Store } from "../data/store";
import { DASHES, pickColour } from "../shared/theme";
import { texts } from "../texts";

const HEIGHT = 92;

export class LRPlot {
  readonly root = el("div", "wb-strip");
  private readonly key = el("div", "wb-key");
  private readonly host = el("div", "wb-body");
  private readonly frame: Frame;
  private named = "";
  private values: HTMLElement[] = [];

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly axis: FitAxis,
    hover: Hover,
  ) {
    this.root.append(this.key, this.host);
    this.root.hidden = true;
    const own = () => this.layers().flatMap(({ y }) => Array.from(y));
    this.frame = new Frame(this.host, colours, {
      name: texts.loss.ratesPlot,
      places: () => axis.places(store.rates.rows.steps()),
      layers: () => this.layers(),
      across: () => axis.across,
      up: texts.loss.lr,
      fit: own,
      range: () => rangeOf([0, ...own().filter((value): value is number => value !== null)]),
      read: (at) => this.read(at),
      words: () => texts.plot.reading(
        axis.named(this.frame.plot?.data[0][this.frame.plot.cursor.idx ?? 0] ?? NaN),
        texts.list(this.names.map((name, i) => texts.plot.value(name, this.values[i]?.textContent ?? ""))),
      ),
      step: (place) => axis.step(place),
      place: (step) => axis.place(step),
      height: HEIGHT,
      above: () => 10,
      bare: true,
    }, hover);
  }

  show(on: boolean): void {
    this.root.hidden = !on;
    this.draw();
  }

  draw(): void {
    const rows = this.store.rates.rows;
    if (this.root.hidden || rows.count === 0 || !this.names.length || rows.columns !== this.names.length) return;
    if (this.named !== JSON.stringify(this.names)) this.fill();
    this.frame.draw();
    this.read(this.frame.plot?.cursor.idx ?? null);
  }

  redraw(): void {
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  private get names(): string[] {
    return this.store.state.rates ?? [];
  }

  private layers(): Layer[] {
    const rows = this.store.rates.rows;
    const x = this.axis.places(rows.steps());
    return this.names.map((name, i) => ({
      name, kind: "line", x, y: rows.line(i), colour: pickColour(this.colours(), i), dash: DASHES[i % DASHES.length] as number[],
    }));
  }

  private fill(): void {
    this.named = JSON.stringify(this.names);
    this.values = this.names.map(() => el("b"));
    this.key.replaceChildren(...this.names.map((name, i) => {
      const item = el("span", "wb-key-item");
      item.append(el("i", `wb-swatch wb-swatch-pick${i % DASHES.length}`), document.createTextNode(name), this.values[i] as HTMLElement);
      return item;
    }));
  }

  private read(at: number | null): void {
    const rows = this.store.rates.rows;
    this.values.forEach((target, k) => setText(target, rate(rows.at(at ?? rows.count - 1, k))));
  }
}
