// One batch size that was tried, as a line of the table.

import { el } from "./dom";
import type { Sized, Trial } from "./wire";

/** What the bars are measured by; limit: where the memory ends, if that can be seen. */
export interface Scales {
  rate: number;
  peak: number;
  limit: number | null;
}

/** "128", or "4 x 32": so many batches make the samples of an update. */
export function name(trial: Sized): string {
  return trial.batches === null ? String(trial.size) : `${trial.batches} x ${trial.size}`;
}

export function trying(now: Sized): HTMLElement {
  const line = begun(now, "wb-trying", "…", "trying");
  line.append(el("span", "wb-bar", "", { role: "cell" }), el("span", "wb-bar", "", { role: "cell" }), el("span", "", "", { role: "cell" }));
  return line;
}

/** use: takes this size; null where that cannot be done. */
export function measured(trial: Trial, scales: Scales, roles: string[], used: boolean, use: (() => void) | null): HTMLElement {
  const line = begun(trial, used ? "wb-used" : "", "✓", "fits");
  line.append(bar("rate", trial.rate, scales.rate, trial.rate_words && `${trial.rate_words}/s`, null, trial.rate_within));
  line.append(bar("peak", trial.peak, scales.peak, trial.peak_words, scales.limit));
  const take = el("span", "wb-take", "", { role: "cell" });
  if (use) {
    const button = el("button", "wb-tool wb-take-it", used ? `${name(trial)} in use` : `Use ${name(trial)}`, {
      type: "button", "aria-pressed": String(used), "data-key": name(trial),
    });
    button.addEventListener("click", () => { if (!used) use(); });
    take.append(button);
  }
  take.append(...roles.map((role) => el("em", role === "best" ? "wb-best" : "", role)));
  line.append(take);
  return line;
}

export function failure(trial: Trial, scales: Scales, before: HTMLElement | null): HTMLElement {
  const memory = trial.state === "memory";
  const line = begun(trial, "wb-failed", memory ? "▲" : "✕", memory ? "out of memory" : "error");
  const [first = "", ...rest] = (trial.error ?? "").trim().split("\n");
  const cell = el("div", "wb-bar wb-error", "", { role: "cell" });
  if (rest.length || first.length > 60) {
    const details = el("details");
    details.open = before?.querySelector("details")?.open ?? false;
    // The keyboard finds its place again by these keys, where a line is written anew.
    details.append(
      el("summary", "", first, { "data-key": `${name(trial)} in short` }),
      el("pre", "", (trial.error ?? "").trim(), { tabindex: "0", "data-key": `${name(trial)} in full` }),
    );
    cell.append(details);
  } else cell.append(el("span", "", first));
  line.append(cell, bar("peak", trial.peak, scales.peak, trial.peak_words, scales.limit), el("span", "", "", { role: "cell" }));
  return line;
}

function begun(trial: Sized, kind: string, sign: string, state: string): HTMLElement {
  const line = el("div", `wb-trial ${kind}`, "", { role: "row" });
  const said = el("span", "wb-state", "", { role: "cell" });
  said.append(el("i", "", sign, { "aria-hidden": "true" }), document.createTextNode(state));
  line.append(el("span", "wb-size", name(trial), { role: "cell" }), said);
  return line;
}

/** within: how well the value is known, as a share of it; a line from its one end to the other. */
function bar(
  kind: "rate" | "peak",
  value: number | null,
  most: number,
  words: string,
  limit: number | null,
  within: number | null = null,
): HTMLElement {
  const holder = el("div", `wb-bar wb-bar-${kind}`, "", { role: "cell" });
  const fill = el("i");
  fill.style.width = `${value !== null && most > 0 ? Math.max(1, (100 * value) / most) : 0}%`;
  const track = el("div", "wb-track");
  track.append(fill);
  if (limit !== null) {
    const end = el("b", "wb-limit");
    end.style.left = `${(100 * limit) / most}%`;
    track.append(end);
  }
  if (within !== null && value !== null && most > 0) {
    const error = el("b", "wb-within", "", { title: `known within ${Math.round(100 * within)}%` });
    error.style.left = `${Math.max(0, (100 * value * (1 - within)) / most)}%`;
    error.style.right = `${Math.max(0, 100 - (100 * value * (1 + within)) / most)}%`;
    track.append(error);
  }
  holder.append(track, el("span", "", words));
  return holder;
}
