// The card of layers that were measured on demand: how their weights and activations are distributed, which units are dead or saturated.

import { Card } from "../shared/card";
import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import type { Bars, LayerBars } from "../data/messages";
import { texts } from "../texts";

const { histograms: words } = texts;
const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 34, BAR = 3;
/** From this share on, dead or saturated units stand out. */
const MUCH = 0.3;

export class Histograms {
  readonly card = new Card(words.title, words.hint, "histograms");
  private readonly measure = el("button", "wb-tool", words.measure, { type: "button", title: words.measureTooltip });
  private readonly table = el("table", "wb-histograms-table");
  private told = "";

  constructor(private readonly store: Store) {
    this.card.root.insertBefore(this.measure, this.card.key); // also where nothing was measured yet
    this.card.body.append(this.table);
    this.measure.addEventListener("click", () => store.request("histograms", { layers: (store.state.picks ?? []).map(({ name }) => name) }));
  }

  draw(): void {
    const { histograms = null, picks = [], still = false } = this.store.state;
    this.measure.hidden = still || !this.store.jobRuns;
    setText(this.measure, picks.length ? words.measurePicked(picks.length) : words.measure);
    this.card.empty = histograms === null;
    const told = JSON.stringify(histograms);
    if (told === this.told || histograms === null) return;
    this.told = told;
    this.card.setAt(texts.axis.at(texts.axis.names.update, String(histograms.step)));
    this.card.setCaption(histograms.note);
    const head = el("tr");
    for (const title of words.columns) head.append(el("th", "", title, { scope: "col" }));
    this.table.replaceChildren(head, ...histograms.rows.map((row) => this.row(row)));
  }

  private row({ name, weights, activations, function: after, dead, saturated }: LayerBars): HTMLElement {
    const row = el("tr");
    const cells = [weights, activations].map((bars, i) => {
      const cell = el("td");
      if (bars) cell.append(picture(bars), el("small", "", range(bars)));
      else cell.append(el("span", "wb-muted", texts.noNumber));
      if (i === 1 && bars && after) cell.append(el("small", "wb-histograms-after", words.after(after)));
      return cell;
    });
    row.append(el("th", "", name, { scope: "row", title: name }), ...cells, share(dead, words.deadTooltip), share(saturated, words.saturatedTooltip));
    return row;
  }
}

function range({ low, high, bad }: Bars): string {
  return texts.range(low, high) + (bad ? texts.separator + words.notFinite(bad) : "");
}

function share(value: number | null, title: string): HTMLElement {
  const cell = el("td", value !== null && value >= MUCH ? "wb-histograms-much" : "", "", { title });
  if (value === null) cell.append(el("span", "wb-muted", texts.noNumber));
  else setText(cell, value > 0 && value < 0.01 ? texts.lessThanOnePercent : texts.percent(Math.round(100 * value)));
  return cell;
}

/** The bins as one shape; the range stands below in words. */
function picture({ heights }: Bars): SVGSVGElement {
  const width = Math.max(1, heights.length) * BAR;
  const svg = document.createElementNS(NS, "svg");
  for (const [name, value] of Object.entries({ width: 40 * BAR, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" })) {
    svg.setAttribute(name, String(value));
  }
  const path = document.createElementNS(NS, "path");
  const steps = heights.map((height, i) => {
    const y = (HEIGHT - (height / 99) * (HEIGHT - 1)).toFixed(1);
    return `V${y}H${(i + 1) * BAR}`;
  });
  path.setAttribute("d", `M0 ${HEIGHT}${steps.join("")}V${HEIGHT}Z`);
  svg.append(path);
  return svg;
}
