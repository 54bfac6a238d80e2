// What stands above the heat map: what it shows, what its colours mean, and the way back out of a module.

import type { Card } from "./card";
import { gradient, type Ramp } from "./colormap";
import { el, say } from "./dom";
import { rate, tick } from "./format";
import type { Store } from "./store";

export class HeatBar {
  readonly path = el("nav", "wb-crumbs", "", { "aria-label": "Opened modules" });
  private readonly norm = el("button", "wb-tool", "norm", { type: "button", title: "The gradient norm of each layer" });
  private readonly ratio = el("button", "wb-tool", "update ratio", {
    type: "button",
    title: "How far an update moves each layer's weights, relative to them: about 1e-3 is usual",
  });
  private readonly measure = el("button", "wb-tool wb-measure", "measure", {
    type: "button",
    title: "Measure update ratios in this fit and the next ones: about once a second, for a copy of the weights",
  });
  private readonly bad = el("span", "wb-key-item", "not finite");
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
    const choice = el("span", "wb-choice", "", { role: "group", "aria-label": "What the map shows" });
    choice.append(this.norm, this.ratio);
    const legend = el("span", "wb-key-item");
    legend.append(this.low, this.ramp, this.high);
    this.bad.prepend(el("i", "wb-swatch wb-swatch-broken"));
    card.tools.append(legend, this.bad, choice);
    card.foot.append(this.measure);
    this.norm.addEventListener("click", () => store.request("show_ratios", { on: false }));
    this.ratio.addEventListener("click", () => this.toRatios());
    this.measure.addEventListener("click", () => store.request("measure_ratios", { on: !store.state.ratios?.on }));
  }

  draw(map: Ramp, [low, high]: [number, number]): void {
    const ratios = this.store.state.map?.shown === "ratio";
    const on = this.store.state.ratios?.on ?? false;
    this.norm.setAttribute("aria-pressed", String(!ratios));
    this.ratio.setAttribute("aria-pressed", String(ratios));
    this.measure.setAttribute("aria-pressed", String(on));
    this.measure.hidden = !ratios;
    this.bad.hidden = !this.store.state.broken;
    say(this.measure, on ? "measuring" : "measure");
    say(this.low, ratios ? "hardly learns" : tick(low));
    say(this.high, ratios ? "too fast" : tick(high));
    this.ramp.classList.toggle("wb-ramp-usual", ratios);
    this.ramp.title = ratios ? `${rate(low)} to ${rate(high)}; the middle, 1e-3, is usual` : "";
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
    const held = this.path.contains(document.activeElement);
    this.path.hidden = path.length === 0;
    const names = ["all layers", ...path.map(([name], i) => relative(name, path[i - 1]?.[0]))];
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
