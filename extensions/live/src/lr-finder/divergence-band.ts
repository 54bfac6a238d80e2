// Shades the distance between the chosen learning rate and the rate at which the sweep diverged, and says it in words.

import type uPlot from "uplot";
import { el } from "../shared/dom";
import { texts } from "../texts";

export class DivergenceBand {
  private readonly root = el("div", "wb-band");

  attach(plot: uPlot): void {
    plot.over.prepend(this.root);
  }

  place(plot: uPlot, chosen: number, diverged: number | null): void {
    const { min, max } = plot.scales["x"] ?? {};
    this.root.hidden = diverged === null || !(chosen > 0) || min == null || max == null;
    if (diverged === null || min == null || max == null || !(chosen > 0)) return;
    const at = (lr: number) => plot.valToPos(Math.min(Math.max(lr, min), max), "x");
    const [from, to] = [at(Math.min(chosen, diverged)), at(Math.max(chosen, diverged))];
    this.root.classList.toggle("wb-beyond", chosen >= diverged);
    this.root.style.left = `${from}px`;
    this.root.style.width = `${Math.max(0, to - from)}px`;
  }
}

/** "410x below divergence", "3x beyond divergence"; nothing where no divergence was seen. */
export function distance(chosen: number, diverged: number | null): string {
  if (diverged === null || !(chosen > 0)) return "";
  if (Math.abs(Math.log(chosen / diverged)) < 0.02) return texts.lrFinder.atDivergence;
  return chosen < diverged ? texts.lrFinder.belowDivergence(times(diverged / chosen)) : texts.lrFinder.beyondDivergence(times(chosen / diverged));
}

function times(ratio: number): string {
  const short = Number(ratio.toPrecision(2));
  return String(short >= 1e6 ? short.toExponential() : short);
}
