// Names a batch size that was tried, and shows the error of one that failed.

import { el } from "../shared/dom";
import type { Sized, Trial } from "../data/messages";
import { texts } from "../texts";

/** "128", or "4 x 32": so many batches make the samples of an update. */
export function name(trial: Sized): string {
  return trial.batches === null ? String(trial.size) : texts.batchSize.accumulated(trial.batches, trial.size);
}

/** `before`: the line made before, whose details stay unfolded. */
export function failure(trial: Trial, before: HTMLElement | null): HTMLElement {
  const memory = trial.state === "memory";
  const line = el("li", "wb-failed");
  const state = el("span", "wb-state");
  state.append(el("i", "", memory ? "▲" : "✕", { "aria-hidden": "true" }), memory ? texts.batchSize.outOfMemory(name(trial)) : texts.batchSize.error(name(trial)));
  line.append(state);
  const [first = "", ...rest] = (trial.error ?? "").trim().split("\n");
  if (!first) return line;
  if (!rest.length && first.length <= 60) {
    line.append(el("span", "wb-error", first));
    return line;
  }
  const details = el("details", "wb-error");
  details.open = before?.querySelector("details")?.open ?? false;
  // The keyboard finds its place again by these keys, where a line is written anew.
  details.append(
    el("summary", "", first, { "data-key": `${name(trial)}.short` }),
    el("pre", "", (trial.error ?? "").trim(), { tabindex: "0", "data-key": `${name(trial)}.full` }),
  );
  line.append(details);
  return line;
}
