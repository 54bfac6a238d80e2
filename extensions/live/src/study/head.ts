// The first lines of a study: its state, what it has spent, the buttons that steer it, the best trial, the verdict.

import { el, setText } from "../shared/dom";
import { clock, number } from "../shared/format";
import type { Store } from "../data/store";
import { texts } from "../texts";
import { carriesOut, type StudyData } from "./data";

const { study: words } = texts;
const STOP = "study.stop()";
const MORE = { fits: ["4", words.fits("4")], seconds: ['"30min"', words.halfAnHour] } as const;

export class Head {
  readonly root = el("header", "wb-study-head");
  private readonly name = el("b", "wb-study-name");
  private readonly metric = el("span", "wb-study-metric");
  private readonly state = el("span", "wb-study-state", "", { role: "status" });
  private readonly bar = el("span", "wb-study-bar", "", { role: "progressbar", "aria-label": words.budget });
  private readonly filled = el("i");
  private readonly spent = el("span", "wb-study-spent");
  private readonly pause: HTMLButtonElement;
  private readonly stop: HTMLButtonElement;
  private readonly more: HTMLButtonElement;
  private readonly buttons = el("span", "wb-study-buttons", "", { role: "group", "aria-label": words.steer });
  private readonly facts = el("div", "wb-study-facts");
  private readonly verdict = el("p", "wb-study-verdict");

  constructor(store: Store, private readonly data: StudyData) {
    const made = (code: () => string) => carriesOut(store, el("button", "wb-button", "", { type: "button" }), code);
    this.pause = made(() => this.steer);
    this.stop = made(() => STOP);
    this.more = made(() => this.extend);
    this.bar.append(this.filled);
    const line = el("div", "wb-study-line");
    this.buttons.append(this.pause, this.stop, this.more);
    line.append(this.name, this.metric, this.state, this.bar, this.spent, this.buttons);
    const second = el("div", "wb-study-line");
    second.append(this.facts, this.verdict);
    this.root.append(line, second);
  }

  private get steer(): string {
    return this.data.now?.paused ? "study.resume()" : "study.pause()";
  }

  private get extend(): string {
    return `study.more(${MORE[this.data.now?.unit ?? "fits"][0]})`;
  }

  draw(): void {
    const { head, now } = this.data;
    if (!head || !now) return;
    setText(this.name, head.id);
    setText(this.metric, words.metric(head.monitor, head.mode));
    const over = now.status === "ended" || now.status === "ending";
    this.root.dataset["status"] = now.status;
    setText(this.state, words.status[now.status]);
    const share = now.budget > 0 ? Math.min(1, now.spent / now.budget) : 1;
    this.filled.style.width = `${100 * share}%`;
    this.bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    setText(this.spent, [this.budget(), ...this.times()].join(texts.separator));
    setText(this.pause, now.paused ? words.resume : words.pause);
    setText(this.stop, words.stop);
    setText(this.more, words.more(MORE[now.unit][1]));
    this.pause.title = this.steer;
    this.stop.title = STOP;
    this.more.title = this.extend;
    this.buttons.hidden = !head.calls.includes("stop");
    for (const button of [this.pause, this.stop]) button.setAttribute("aria-disabled", String(over));
    this.fill();
    setText(this.verdict, head.verdict);
    this.verdict.dataset["adopt"] = String(head.adopt);
  }

  private budget(): string {
    const { unit, spent, budget, by_hand, fits } = this.data.now!;
    if (unit === "seconds") return words.ofTime(clock(spent), clock(budget), fits.toFixed(1));
    const all = words.ofFits(spent.toFixed(1), String(budget));
    return by_hand > 0 ? words.asked(all, by_hand.toFixed(1)) : all;
  }

  private times(): string[] {
    const { elapsed, left, workers, status } = this.data.now!;
    const out = [words.elapsed(clock(elapsed))];
    if (left !== null && status === "running") out.push(words.left(clock(left)));
    if (status !== "ended") out.push(status === "running" && workers === 0 ? words.starts : words.workers(workers));
    return out;
  }

  /** The best value, the baseline's, and the noise of a seed. */
  private fill(): void {
    const { best, best_value, baseline_value, noise, repeats, seeds } = this.data.head!;
    const facts: [string, string, string][] = [
      [words.best, best_value === null ? texts.noNumber : number(best_value), best === null ? words.nothing : words.of(best, seeds)],
      [words.baseline, baseline_value === null ? texts.noNumber : number(baseline_value), ""],
      [words.noise, noise === null ? texts.noNumber : words.within(number(noise)), noise === null ? words.noRepeats : words.repeats(repeats)],
    ];
    const told = JSON.stringify(facts);
    if (this.facts.dataset["told"] === told) return;
    this.facts.dataset["told"] = told;
    this.facts.replaceChildren(...facts.map(([name, value, note]) => {
      const fact = el("span");
      fact.append(el("span", "", name), el("b", "", value));
      if (note) fact.append(el("span", "", note));
      return fact;
    }));
  }
}
