// The progress of the current job: a sentence on how it stands, details, a bar; a screen reader hears changes of the state.

import { el, setText } from "../shared/dom";
import { trouble } from "./health";
import type { Progress } from "../data/messages";
import type { Store } from "../data/store";
import { texts } from "../texts";

export const DOTS: Record<string, string> = {
  queued: "○", running: "●", paused: "❚❚", finished: "✓", stopped: "■", failed: "✕",
};

/** So many values have room beside the words: loss, val, averaged. */
const MANY = 3;

const { progress: words } = texts;

export class ProgressLine {
  readonly root = el("div", "wb-progress");
  private readonly dot = el("span", "wb-dot", "○", { "aria-hidden": "true" });
  private readonly doing = el("strong", "", words.ready);
  private readonly doubt = el("b", "wb-trouble");
  private readonly headline = el("span", "wb-headline");
  private readonly details = el("span", "wb-words", words.start);
  private readonly values = el("span", "wb-values");
  private readonly memory = el("span", "wb-memory");
  private readonly used = el("i");
  private readonly usedWords = el("span");
  private readonly fill = el("i");
  private readonly bar = el("div", "wb-progress-bar", "", { role: "progressbar", "aria-label": words.bar });
  private readonly spoken = el("div", "wb-spoken", "", { role: "status", "aria-live": "polite" });

  constructor(private readonly store: Store) {
    const [sentence, line] = [el("div", "wb-sentence"), el("div", "wb-progress-line")];
    const track = el("span", "wb-memory-bar", "", { "aria-hidden": "true" });
    track.append(this.used);
    this.memory.append(el("span", "", words.memory), track, this.usedWords);
    sentence.append(this.dot, this.doing, this.doubt, this.headline);
    line.append(this.details, this.values, this.memory);
    this.bar.append(this.fill);
    this.root.append(sentence, line, this.bar, this.spoken);
  }

  draw(): void {
    const { progress, said } = this.store.state;
    if (said) setText(this.spoken, said);
    this.drawMemory();
    if (!progress) return this.rest();
    const { status, total, done } = progress;
    this.root.dataset["status"] = status;
    const doubt = trouble(this.store);
    if (doubt) this.root.dataset["trouble"] = doubt.level;
    else delete this.root.dataset["trouble"];
    setText(this.doubt, doubt?.trouble ?? "");
    setText(this.dot, doubt ? "!" : DOTS[status] ?? "○");
    setText(this.doing, this.state(progress, doubt !== null));
    setText(this.headline, progress.headline);
    setText(this.details, [...progress.words, progress.ended].filter(Boolean).join("  ·  "));
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

  /** Of a fit in which Health finds nothing that puts its result in doubt: that it is on course. */
  private state({ status, doing, kind }: Progress, isInDoubt: boolean): string {
    if (status !== "running") return words.ended(doing, texts.status[status]);
    return kind === "fit" && this.store.state.health && !isInDoubt ? words.onCourse : doing;
  }

  /** No job has run yet. */
  private rest(): void {
    delete this.root.dataset["status"];
    delete this.root.dataset["trouble"];
    setText(this.doubt, "");
    setText(this.dot, "○");
    setText(this.doing, words.ready);
    setText(this.headline, "");
    setText(this.details, words.start);
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
    setText(this.usedWords, memory.words);
  }
}
