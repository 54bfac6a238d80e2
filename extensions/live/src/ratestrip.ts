// The learning rate of each optimizer, in a strip of its own below the loss: shown on demand.

import uPlot from "uplot";
import { el, say } from "./dom";
import { rate, steps, tick } from "./format";
import { byKeyboard } from "./keyboard";
import { baseOptions, followWidth, rangeOf, type PaletteOf } from "./plot";
import { DASHES } from "./picks";
import type { Store } from "./store";
import { pickColour } from "./theme";

const HEIGHT = 92;

export class RateStrip {
  readonly root = el("div", "wb-strip");
  private readonly key = el("div", "wb-key");
  private readonly host = el("div", "wb-body");
  private plot: uPlot | null = null;
  private names = "";
  private values: HTMLElement[] = [];
  private readonly close: () => void;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly sync: string,
  ) {
    this.root.append(this.key, this.host);
    this.root.hidden = true;
    this.close = followWidth(this.host, () => this.plot);
  }

  show(on: boolean): void {
    this.root.hidden = !on;
    this.draw();
  }

  draw(): void {
    const rows = this.store.rates.rows;
    const names = this.store.state.rates ?? [];
    if (this.root.hidden || rows.count === 0 || !names.length || rows.columns !== names.length) return;
    const data = [rows.steps(), ...names.map((_, i) => rows.line(i))] as uPlot.AlignedData;
    if (this.plot && this.names === JSON.stringify(names)) this.plot.setData(data);
    else this.make(names, data);
    this.read();
  }

  redraw(): void {
    this.plot?.redraw(false);
  }

  destroy(): void {
    this.close();
    this.plot?.destroy();
  }

  private make(names: string[], data: uPlot.AlignedData): void {
    this.names = JSON.stringify(names);
    this.plot?.destroy();
    this.values = names.map(() => el("b"));
    this.key.replaceChildren(...names.map((name, i) => {
      const item = el("span", "wb-key-item");
      item.append(el("i", `wb-swatch wb-swatch-pick${i % DASHES.length}`), document.createTextNode(name), this.values[i] as HTMLElement);
      return item;
    }));
    const base = baseOptions(this.colours, { x: "", y: "lr" });
    const [x, y] = base.axes as [uPlot.Axis, uPlot.Axis];
    this.plot = new uPlot({
      ...base,
      width: this.host.clientWidth || 300,
      height: HEIGHT,
      cursor: { ...base.cursor, sync: { key: this.sync, scales: ["x", null] } },
      scales: {
        x: { time: false, range: (_u, min, max) => [min, max > min ? max : min + 1] },
        y: { range: () => rangeOf([0, ...names.flatMap((_, i) => this.store.rates.rows.column(i))]) },
      },
      axes: [{ ...x, show: false }, { ...y, values: (_u, s) => s.map((v) => (v == null ? "" : tick(v))) }],
      series: [{}, ...names.map((_, i) => ({
        stroke: () => pickColour(this.colours(), i), width: 1.5,
        dash: DASHES[i % DASHES.length] as number[], points: { show: false },
      }))],
      hooks: { setCursor: [() => this.read()] },
    }, data, this.host);
    byKeyboard(this.plot, "Learning rate", () => this.words(names));
  }

  private words(names: string[]): string {
    const step = this.store.rates.rows.step(this.plot?.cursor.idx ?? 0);
    return `update ${steps(Math.round(step))}: ${names.map((name, i) => `${name} ${this.values[i]?.textContent}`).join(", ")}`;
  }

  private read(): void {
    const rows = this.store.rates.rows;
    const i = this.plot?.cursor.idx ?? rows.count - 1;
    this.values.forEach((target, k) => say(target, rate(rows.at(i, k))));
  }
}
