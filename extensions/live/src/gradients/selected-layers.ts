// The layers that have a line in the norm plot: their lines, and a list of buttons that remove them.

import { el, setText, focusIn } from "../shared/dom";
import { number } from "../shared/format";
import type { FitAxis } from "../plot/axis";
import type { Layer } from "../plot/layers";
import type { PaletteOf } from "../plot/scales";
import { smoothed } from "../plot/smooth";
import type { Store } from "../data/store";
import { DASHES, pickColour } from "../shared/theme";
import type { Pick } from "../data/messages";
import { texts } from "../texts";

const { norm: words } = texts;

export class SelectedLayers {
  readonly root = el("ul", "wb-picks", "", { "aria-label": words.layers });
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
      if (value) setText(value, step === null ? last(pick) : number(this.at(step, i)));
    });
  }

  /** The value of each at `step`, to be announced. */
  readings(step: number): string[] {
    return (this.store.state.picks ?? []).map(({ name }, i) => texts.plot.value(name, number(this.at(step, i))));
  }

  /** The values of all lines: the plot makes room for them. */
  *values(): Generator<number> {
    const rows = this.store.picked.rows;
    const count = Math.min(this.store.state.picks?.length ?? 0, rows.columns);
    for (let pick = 0; pick < count; pick += 1) yield* rows.column(pick);
  }

  layers(axis: FitAxis): Layer[] {
    const rows = this.store.picked.rows;
    const x = axis.places(rows.steps());
    return (this.store.state.picks ?? []).slice(0, rows.columns).flatMap(({ name, stroke }, column): Layer[] => {
      const line: Layer = { name, kind: "line", x, y: rows.line(column, true), colour: pickColour(this.colours(), stroke), width: 1, alpha: 0.3 };
      return [line, { ...line, name: "", y: smoothed(line.y, "auto", rows.width, true), width: 1.75, alpha: 1, dash: DASHES[stroke] ?? [] }];
    });
  }

  private at(step: number, column: number): number {
    const rows = this.store.picked.rows;
    return rows.at(Math.floor(rows.place(step)), column);
  }

  /** The focus stays near where it was. */
  private fill(picks: Pick[]): void {
    const held = [...this.root.children].findIndex((item) => focusIn(item));
    this.root.replaceChildren(...picks.map((pick) => this.item(pick)));
    if (held < 0) return;
    const near = this.root.children[Math.min(held, picks.length - 1)];
    (near?.querySelector("button") ?? this.root.closest("section")?.querySelector<HTMLElement>("[tabindex]"))?.focus();
  }

  private item({ name, first, end, stroke }: Pick): HTMLElement {
    const take = el("button", "wb-pick", "", {
      type: "button",
      title: words.layerTooltip(name, end - first),
    });
    take.append(el("i", `wb-swatch wb-swatch-pick${stroke}`), el("span", "", name), el("b"), el("em", "", "×", { "aria-hidden": "true" }));
    take.append(el("span", "wb-spoken", words.removeLine));
    take.addEventListener("click", () => this.store.request("pick_layer", { first, end }));
    const item = el("li");
    item.append(take);
    return item;
  }
}

function last({ value, share }: Pick): string {
  if (value === null) return texts.noNumber;
  if (share === null) return number(value);
  return words.share(number(value), share > 0 && share < 0.01 ? texts.lessThanOnePercent : texts.percent(Math.round(100 * share)));
}
