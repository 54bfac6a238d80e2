// The layers that have a line in the norm plot: their strokes, and a list of them, each a button that takes its line away.

import type uPlot from "uplot";
import { el, say } from "./dom";
import { number } from "./format";
import type { PaletteOf } from "./plot";
import type { Store } from "./store";
import type { Rows } from "./table";
import { pickColour } from "./theme";
import type { Pick } from "./wire";

export const DASHES = [[], [7, 4], [2, 3], [8, 3, 2, 3], [14, 4]]; // as the swatches in live.css

export class Picks {
  readonly root = el("ul", "wb-picks", "", { "aria-label": "Layers with a line" });
  private told = "";

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {}

  /** The list: last values and shares; under a cursor at `step` the values there. */
  draw(step: number | null): void {
    const picks = this.store.state.picks ?? [];
    const told = JSON.stringify(picks.map(({ name, stroke }) => [name, stroke]));
    if (told !== this.told) this.fill(picks);
    this.told = told;
    this.root.hidden = picks.length === 0;
    picks.forEach((pick, i) => {
      const value = this.root.children[i]?.querySelector("b");
      if (value) say(value, step === null ? last(pick) : number(this.at(step, i)));
    });
  }

  /** What each has at `step`. */
  words(step: number): string[] {
    return (this.store.state.picks ?? []).map(({ name }, i) => `${name} ${number(this.at(step, i))}`);
  }

  /** The values of all lines: the plot makes room for them. */
  *values(): Generator<number> {
    const rows = this.store.picked.rows;
    const count = Math.min(this.store.state.picks?.length ?? 0, rows.columns);
    for (let pick = 0; pick < count; pick += 1) yield* rows.column(pick);
  }

  lines(plot: uPlot): void {
    const rows = this.store.picked.rows;
    const picks = this.store.state.picks ?? [];
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    picks.slice(0, rows.columns).forEach((pick, column) => {
      ctx.strokeStyle = pickColour(this.colours(), pick.stroke);
      const values = rows.column(column);
      ctx.globalAlpha = 0.3;
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([]);
      stroke(plot, rows, values);
      ctx.globalAlpha = 1;
      ctx.lineWidth = 1.75 * devicePixelRatio;
      ctx.setLineDash((DASHES[pick.stroke] ?? []).map((length) => length * devicePixelRatio));
      stroke(plot, rows, trend(values));
    });
    ctx.restore();
  }

  private at(step: number, column: number): number {
    const rows = this.store.picked.rows;
    return rows.at(Math.floor(rows.place(step)), column);
  }

  /** The focus stays near where it was. */
  private fill(picks: Pick[]): void {
    const held = [...this.root.children].findIndex((item) => item.contains(document.activeElement));
    this.root.replaceChildren(...picks.map((pick) => this.item(pick)));
    if (held < 0) return;
    const near = this.root.children[Math.min(held, picks.length - 1)];
    (near?.querySelector("button") ?? this.root.closest("section")?.querySelector<HTMLElement>("[tabindex]"))?.focus();
  }

  private item({ name, first, end, stroke }: Pick): HTMLElement {
    const many = end - first > 1;
    const take = el("button", "wb-pick", "", {
      type: "button",
      title: `${name}${many ? `, the largest of its ${end - first} layers` : ""}: last norm · share of the total (of its square). Press to take its line away`,
    });
    take.append(el("i", `wb-swatch wb-swatch-pick${stroke}`), el("span", "", name), el("b"), el("em", "", "×", { "aria-hidden": "true" }));
    take.append(el("span", "wb-spoken", ": take this line away"));
    take.addEventListener("click", () => this.store.request("pick_layer", { first, end }));
    const item = el("li");
    item.append(take);
    return item;
  }
}

function stroke(plot: uPlot, rows: Rows, values: number[]): void {
  const { ctx } = plot;
  ctx.beginPath();
  let pen = false;
  values.forEach((value, row) => {
    if (!(value > 0) || value === Infinity) {
      pen = false;
      return;
    }
    const [x, y] = [plot.valToPos(rows.step(row), "x", true), plot.valToPos(value, "y", true)];
    if (pen) ctx.lineTo(x, y);
    else ctx.moveTo(x, y);
    pen = true;
  });
  ctx.stroke();
}

/** A running mean over the last tenth, on the logarithmic scale: as the total is smoothed in workbench/plots/smooth.py. */
function trend(values: number[]): number[] {
  let [mean, seen] = [0, 0];
  return values.map((value) => {
    if (!(value > 0) || value === Infinity) return NaN;
    seen += 1;
    mean += (Math.log(value) - mean) / Math.min(Math.max(seen / 10, 5), 200, seen);
    return Math.exp(mean);
  });
}

function last({ value, share }: Pick): string {
  if (value === null) return "–";
  return number(value) + (share === null ? "" : ` · ${share > 0 && share < 0.01 ? "<1" : Math.round(100 * share)}%`);
}
