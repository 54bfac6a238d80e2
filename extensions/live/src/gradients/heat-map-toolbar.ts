// What stands above the heat map: the choice of what it shows, the meaning of its colours, the way back out of a module.

import type { Card } from "../shared/card";
import { gradient, type Ramp } from "./colormap";
import { el, setText, focusIn } from "../shared/dom";
import { rate, tick } from "../shared/format";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { heatMap: words } = texts;

export class HeatMapToolbar {
  readonly path = el("nav", "wb-crumbs", "", { "aria-label": words.path });
  private readonly norm = el("button", "wb-tool", words.norm, { type: "button", title: words.normTooltip });
  private readonly ratio = el("button", "wb-tool", words.ratio, {
    type: "button",
    title: words.ratioTooltip,
  });
  private readonly measure = el("button", "wb-tool wb-measure", words.measure, {
    type: "button",
    title: words.measureTooltip,
  });
  private readonly bad = el("span", "wb-key-item", texts.notFinite);
  private readonly none = el("span", "wb-key-item", words.hardlyOrNever, { title: words.noiseTooltip });
  private readonly low = el("span");
  private readonly high = el("span");
  private readonly ramp = el("i", "wb-ramp");
  private drawn: Ramp | null = null;
  private told = "";

  constructor(
    private readonly store: Store,
    card: Card,
    private readonly map: HTMLElement,
  ) {
    const choice = el("span", "wb-choice", "", { role: "group", "aria-label": words.choice });
    choice.append(this.norm, this.ratio);
    const legend = el("span", "wb-key-item");
    legend.append(this.low, this.ramp, this.high);
    this.bad.prepend(el("i", "wb-swatch wb-swatch-broken"));
    this.none.prepend(el("i", "wb-swatch wb-swatch-nothing"));
    card.key.append(legend, this.none, this.bad);
    card.tools.append(choice);
    card.foot.append(this.measure);
    this.norm.addEventListener("click", () => store.request("show_ratios", { on: false }));
    this.ratio.addEventListener("click", () => this.toRatios());
    this.measure.addEventListener("click", () => store.request("measure_ratios", { on: !store.state.ratios?.on }));
  }

  /** dead: whether some layers have had no gradient. */
  draw(map: Ramp, [low, high]: [number, number], dead: boolean): void {
    const ratios = this.store.state.map?.shown === "ratio";
    const on = this.store.state.ratios?.on ?? false;
    this.norm.setAttribute("aria-pressed", String(!ratios));
    this.ratio.setAttribute("aria-pressed", String(ratios));
    this.measure.setAttribute("aria-pressed", String(on));
    this.measure.hidden = !ratios;
    this.none.hidden = !dead;
    this.bad.hidden = !this.store.state.broken;
    setText(this.measure, on ? words.measuring : words.measure);
    setText(this.low, ratios ? words.slow : tick(low));
    setText(this.high, ratios ? words.fast : tick(high));
    this.ramp.classList.toggle("wb-ramp-usual", ratios);
    this.ramp.title = ratios ? words.usual(rate(low), rate(high)) : "";
    if (this.drawn !== map) this.ramp.style.background = gradient(map);
    this.drawn = map;
    this.crumbs();
  }

  /** The modules that are open, each a way back to it. */
  private crumbs(): void {
    const path = this.store.state.map?.path ?? [];
    const told = JSON.stringify(path);
    if (told === this.told) return;
    this.told = told;
    const held = focusIn(this.path) !== null;
    this.path.hidden = path.length === 0;
    const names = [words.allLayers, ...path.map(([name], i) => relative(name, path[i - 1]?.[0]))];
    this.path.replaceChildren(
      ...names.flatMap((name, depth) => {
        if (depth === path.length) return [el("b", "", name, { "aria-current": "location" })];
        const back = el("button", "wb-crumb", name, { type: "button" });
        back.addEventListener("click", () => this.store.request("close_group", { depth }));
        return [back, el("span", "", "›", { "aria-hidden": "true" })];
      }),
    );
    if (held) this.map.focus();
  }

  /** Ratios are measured when somebody first wants to see them. */
  private toRatios(): void {
    this.store.request("show_ratios", { on: true });
    const { ratios } = this.store.state;
    if (ratios && !ratios.on && ratios.words) this.store.request("measure_ratios", { on: true });
  }
}

/** The name within the module that is open. */
export function relative(name: string, module: string | undefined): string {
  return module && name.startsWith(`${module}.`) ? name.slice(module.length + 1) : name;
}
