// Reads line plots by keyboard: arrow keys move the cursor, and the values under it are announced.

import type uPlot from "uplot";
import { el, setText } from "../shared/dom";
import { texts } from "../texts";

const REST_MS = 250; // nothing is announced while a key is held down
const AWAY = -10; // where uPlot takes the cursor for hidden

/** `name`: what the plot is; `words`: what is under the cursor; `others`: takes the keys that zoom and move, if the key is one. */
export function byKeyboard(plot: uPlot, name: string, words: () => string, others: (key: string) => boolean): void {
  const { over } = plot;
  over.tabIndex = 0;
  over.setAttribute("role", "application");
  over.setAttribute("aria-roledescription", texts.plot.role);
  over.setAttribute("aria-label", texts.plot.keys(name));
  const spoken = el("span", "wb-spoken", "", { role: "status" });
  plot.root.append(spoken);
  let later: ReturnType<typeof setTimeout> | undefined;
  let moved = false; // by a key; what the mouse moves it takes away itself
  over.addEventListener("keydown", (event) => {
    if (event.target !== over) return; // a handle within has arrow keys of its own
    if (!event.ctrlKey && !event.metaKey && !event.altKey && others(event.key)) {
      event.preventDefault();
      event.stopPropagation();
      return;
    }
    const to = wanted(plot, event);
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has commands on these keys
    move(plot, to);
    moved = to !== null;
    clearTimeout(later);
    later = setTimeout(() => setText(spoken, plot.cursor.idx == null ? "" : words()), REST_MS);
  });
  over.addEventListener("blur", () => {
    clearTimeout(later);
    setText(spoken, "");
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
