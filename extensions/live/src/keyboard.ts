// Line plots by keyboard: arrows move the cursor that the mouse moves, and what the key says then is announced.

import type uPlot from "uplot";
import { el, say } from "./dom";
import type { Store } from "./store";

const REST_MS = 250; // nothing is announced while a key is held down
const AWAY = -10; // where uPlot takes the cursor for hidden

/** `name`: what the plot is; `words`: what is under the cursor. */
export function byKeyboard(plot: uPlot, name: string, words: () => string): void {
  const { over } = plot;
  over.tabIndex = 0;
  over.setAttribute("role", "application");
  over.setAttribute("aria-roledescription", "plot");
  over.setAttribute("aria-label", `${name}. Arrow keys read values, Home and End the first and the last, Escape ends.`);
  const spoken = el("span", "wb-spoken", "", { role: "status" });
  plot.root.append(spoken);
  let later: ReturnType<typeof setTimeout> | undefined;
  let moved = false; // by a key; what the mouse moves it takes away itself
  over.addEventListener("keydown", (event) => {
    const to = event.target === over ? wanted(plot, event) : undefined; // a handle within has arrow keys of its own
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has commands on these keys
    move(plot, to);
    moved = to !== null;
    clearTimeout(later);
    later = setTimeout(() => say(spoken, plot.cursor.idx == null ? "" : words()), REST_MS);
  });
  over.addEventListener("blur", () => {
    clearTimeout(later);
    say(spoken, "");
    if (moved) move(plot, null);
    moved = false;
  });
}

/** The point that a key leads to; null: none any more; undefined: the key is for others. */
function wanted(plot: uPlot, { key, shiftKey }: KeyboardEvent): number | null | undefined {
  const last = plot.data[0].length - 1;
  const at = plot.cursor.idx;
  const leap = shiftKey ? 10 : 1;
  if (last < 0) return undefined;
  if (key === "ArrowLeft") return at == null ? last : Math.max(at - leap, 0);
  if (key === "ArrowRight") return at == null ? last : Math.min(at + leap, last);
  if (key === "Home") return 0;
  if (key === "End") return last;
  return key === "Escape" && at != null ? null : undefined;
}

function move(plot: uPlot, to: number | null): void {
  const left = to === null ? AWAY : Math.max(plot.valToPos(plot.data[0][to] as number, "x"), 0);
  // The third argument, which is missing in uPlot's types: plots that share this cursor move theirs, too.
  const set = plot.setCursor as (place: { left: number; top: number }, fire: boolean, publish: boolean) => void;
  set({ left, top: to === null ? AWAY : 0 }, true, true);
}

/** Whether a job goes on: rows that are missing now may be on their way. */
export function going(store: Store): boolean {
  const status = store.state.progress?.status;
  return status === "running" || status === "paused";
}

/** Whether the focus is within `part` and the next fit has yet to say something: hidden now, it would let the focus fall to the page. */
export function waits(store: Store, part: Element | undefined): boolean {
  return going(store) && store.fit.rows.count === 0 && (part?.contains(document.activeElement) ?? false);
}
