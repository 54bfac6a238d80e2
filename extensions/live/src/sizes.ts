// Every batch size that was tried: samples per second and peak memory as bars, failures in their own colour.

import { Card } from "./card";
import { el } from "./dom";
import type { Store } from "./store";
import type { Trial } from "./wire";

export class Sizes {
  readonly card = new Card("Batch size", "Press Find beside the batch size: speed and peak memory of each size tried appear here.", "sizes");

  constructor(private readonly store: Store) {
    this.card.setKey([
      { name: "samples/s", swatch: "bar-rate" },
      { name: "peak memory", swatch: "bar-peak" },
      { name: "failed", swatch: "bad" },
    ]);
  }

  draw(): void {
    const { trials = [], search } = this.store.state;
    this.card.empty = trials.length === 0;
    const rate = Math.max(...trials.map((t) => (t.ok ? (t.rate ?? 0) : 0)), 0);
    const peak = Math.max(...trials.map((t) => t.peak ?? 0), 0);
    const table = el("div", "wb-trials", "", { role: "table", "aria-label": "Batch sizes tried" });
    for (const trial of trials) table.append(this.line(trial, rate, peak));
    this.card.body.replaceChildren(table);
    this.card.setCaption(search?.ended ?? "");
  }

  private line(trial: Trial, rate: number, peak: number): HTMLElement {
    const { search } = this.store.state;
    const line = el("div", trial.ok ? "wb-trial" : "wb-trial wb-failed", "", { role: "row" });
    const size = el("span", "wb-size", String(trial.size), { role: "cell" });
    const badges = el("span", "wb-badges", "", { role: "cell" });
    if (search?.best === trial.size) badges.append(el("em", "wb-best", "best"));
    if (search?.largest === trial.size) badges.append(el("em", "", "largest"));
    line.append(size, badges);
    if (trial.ok) line.append(bar("rate", trial.rate, rate, trial.rate_words && `${trial.rate_words}/s`));
    else line.append(failure(trial));
    line.append(bar("peak", trial.peak, peak, trial.peak_words));
    return line;
  }
}

function bar(kind: "rate" | "peak", value: number | null, most: number, words: string): HTMLElement {
  const holder = el("div", `wb-bar wb-bar-${kind}`, "", { role: "cell" });
  const fill = el("i");
  fill.style.width = `${value !== null && most > 0 ? Math.max(1, (100 * value) / most) : 0}%`;
  const track = el("div", "wb-track");
  track.append(fill);
  holder.append(track, el("span", "", words));
  return holder;
}

function failure(trial: Trial): HTMLElement {
  const error = trial.error ?? "failed";
  const holder = el("div", "wb-bar wb-error", "", { role: "cell", title: error, tabindex: "0" });
  holder.append(el("span", "", `failed: ${error}`));
  return holder;
}
