// Says below the plot why a sweep ended; notes and the other rules can be unfolded.

import { el } from "../shared/dom";
import { rate } from "../shared/format";
import type { Curve, Suggestion } from "../data/messages";
import { texts } from "../texts";

export class SweepResult {
  readonly root = el("div", "wb-verdict");
  private shown = "";

  /** `whose`: of several optimizers, whose rates these are. `scale`: from a rate of the curve to the one that is shown. */
  draw(curve: Curve | null, whose: string, scale: (lr: number) => number): void {
    const now = JSON.stringify([curve, whose, scale(1)]);
    if (now === this.shown) return; // what is unfolded stays so
    this.shown = now;
    const open = this.root.querySelector("details")?.open ?? false;
    this.root.replaceChildren();
    if (whose) this.root.append(el("div", "wb-whose", whose));
    if (!curve) return;
    this.root.append(el("div", "wb-ended", sentence(curve.ended)));
    for (const doubt of curve.doubts) {
      const line = el("div", "wb-doubt");
      line.append(el("i", "", "▲", { "aria-hidden": "true" }), document.createTextNode(doubt));
      this.root.append(line);
    }
    this.root.append(rest(curve, scale, open));
  }
}

/** The rule that the recommended rate is from; of several with this rate the first. */
export function bestOf(curve: Curve): Suggestion | undefined {
  return curve.suggestions.find((s) => isBest(s, curve));
}

/** Whether a rule found the recommended rate. */
export function isBest(suggestion: Suggestion, curve: Curve): boolean {
  return suggestion.lr !== null && curve.suggestion !== null && Math.abs(suggestion.lr / curve.suggestion - 1) < 1e-4;
}

function rest(curve: Curve, scale: (lr: number) => number, open: boolean): HTMLElement {
  const details = el("details");
  details.open = open;
  details.append(el("summary", "", texts.lrFinder.more));
  const notes = el("ul");
  for (const note of curve.notes) notes.append(el("li", "", note));
  if (curve.notes.length) details.append(notes);
  const table = el("table", "wb-rules");
  for (const suggestion of curve.suggestions) {
    const row = table.insertRow();
    row.append(el("th", "", suggestion.name, { scope: "row" }));
    row.insertCell().textContent = suggestion.lr === null ? texts.lrFinder.noResult : rate(scale(suggestion.lr));
    row.insertCell().textContent = suggestion.why;
  }
  if (curve.suggestions.length) details.append(table);
  return details;
}

function sentence(text: string): string {
  return text === "" ? "" : `${text[0]?.toUpperCase()}${text.slice(1)}.`;
}
