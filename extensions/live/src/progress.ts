// Where the current job is, in words, with a thin bar; and what a screen reader hears when its state changes.

import { el, say } from "./dom";
import type { Store } from "./store";

const DOTS: Record<string, string> = {
  queued: "○", running: "●", paused: "❚❚", finished: "✓", stopped: "■", failed: "✕",
};

/** So many values have room beside the words: loss, val, averaged. */
const MANY = 3;

export class ProgressLine {
  readonly root = el("div", "wb-progress");
  private readonly dot = el("span", "wb-dot", "○", { "aria-hidden": "true" });
  private readonly doing = el("strong", "", "Ready");
  private readonly words = el("span", "wb-words", "Nothing has run yet.");
  private readonly values = el("span", "wb-values");
  private readonly memory = el("span", "wb-memory");
  private readonly used = el("i");
  private readonly usedWords = el("span");
  private readonly fill = el("i");
  private readonly bar = el("div", "wb-progress-bar", "", { role: "progressbar", "aria-label": "Progress" });
  private readonly spoken = el("div", "wb-spoken", "", { role: "status", "aria-live": "polite" });

  constructor(private readonly store: Store) {
    const line = el("div", "wb-progress-line");
    const track = el("span", "wb-memory-bar", "", { "aria-hidden": "true" });
    track.append(this.used);
    this.memory.append(el("span", "", "mem"), track, this.usedWords);
    line.append(this.dot, this.doing, this.words, this.values, this.memory);
    this.bar.append(this.fill);
    this.root.append(line, this.bar, this.spoken);
  }

  draw(): void {
    const { progress, said } = this.store.state;
    if (said) say(this.spoken, said);
    this.drawMemory();
    if (!progress) return this.rest();
    const { status, total, done } = progress;
    this.root.dataset["status"] = status;
    say(this.dot, DOTS[status] ?? "○");
    say(this.doing, status === "running" ? progress.doing : `${progress.doing}: ${status}`);
    say(this.words, [...progress.words, progress.ended].filter(Boolean).join("  ·  "));
    this.values.classList.toggle("wb-many", progress.values.length > MANY);
    this.values.replaceChildren(...progress.values.map(([name, value]) => {
      const item = el("span", "", `${name} `);
      item.append(el("b", "", value));
      return item;
    }));
    const over = status === "finished";
    const share = over ? 1 : total ? Math.min(1, done / total) : 0;
    this.fill.style.width = `${100 * share}%`;
    const unknown = status === "running" && !total;
    if (unknown) this.bar.removeAttribute("aria-valuenow");
    else this.bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    this.bar.classList.toggle("wb-unknown", unknown);
  }

  /** No job: as it was made. */
  private rest(): void {
    delete this.root.dataset["status"];
    say(this.dot, "○");
    say(this.doing, "Ready");
    say(this.words, "Nothing has run yet.");
    this.values.replaceChildren();
    this.fill.style.width = "0";
    this.bar.removeAttribute("aria-valuenow");
    this.bar.classList.remove("wb-unknown");
  }

  private drawMemory(): void {
    const memory = this.store.state.memory ?? null;
    this.memory.hidden = memory === null;
    if (memory === null) return;
    const share = memory.of ? Math.min(1, memory.used / memory.of) : 0;
    this.used.style.width = `${100 * share}%`;
    this.memory.classList.toggle("wb-tight", share > 0.9);
    say(this.usedWords, memory.words);
  }
}
