// The curve of another job, faint over a plot while its chip is under the mouse or has the focus, with its name in the plot.

import type uPlot from "uplot";
import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";
import type { Layer } from "./layers";
import type { PaletteOf } from "./scales";

const DASH = [6, 3];

export class Overlay {
  private readonly tag = el("div", "wb-tag wb-tag-right");

  /** kind: that of the jobs whose curves this plot can have; places: the column of the horizontal axis, undefined: the curves have none. */
  constructor(private readonly store: Store, private readonly colours: PaletteOf, private readonly kind: string, private readonly places: () => number | undefined) {
    this.tag.hidden = true;
  }

  /** Name the curve, or take the name away. */
  draw(plot: uPlot | null): void {
    const curve = this.store.overlayOf(this.kind);
    this.tag.hidden = !curve || !this.layers().length;
    if (curve) setText(this.tag, texts.timeline.overlaid(curve.run, curve.value));
    if (plot && this.tag.parentElement !== plot.over) plot.over.append(this.tag);
  }

  layers(): Layer[] {
    const curve = this.store.overlayOf(this.kind);
    const place = this.places();
    if (!curve || place === undefined) return [];
    const rows = curve.rows.filter((row) => row[place] != null);
    return [{
      name: curve.run, kind: "line", x: rows.map((row) => row[place] as number), y: rows.map((row) => row.at(-1) ?? null),
      colour: this.colours().muted, width: 2, alpha: 0.7, dash: DASH,
    }];
  }
}
