// Says what limits the batch size: memory, speed and the gradient's noise, each with its reason and a size to use.

import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import { name } from "./trial";
import type { Trial } from "../data/messages";
import { texts } from "../texts";

const words = texts.batchSize.limits;

interface Limit {
  what: string;
  text: string;
  reason: string;
  trial: Trial | undefined;
}

export class Limits {
  readonly root = el("ul", "wb-bounds", "", { "aria-label": words.label });
  private told = "";

  /** `use`: takes a size. */
  constructor(
    private readonly store: Store,
    private readonly use: (trial: Trial) => void,
  ) {}

  draw(): void {
    const bounds = this.bounds();
    const now = JSON.stringify([bounds, this.store.state.followed]);
    if (now === this.told) return;
    this.told = now;
    const held = focusIn(this.root)?.dataset["what"];
    this.root.hidden = bounds.length === 0;
    this.root.replaceChildren(...bounds.map((bound) => this.item(bound)));
    if (held) this.root.querySelector<HTMLElement>(`[data-what="${held}"]`)?.focus();
  }

  private bounds(): Limit[] {
    const { search, trials = [] } = this.store.state;
    if (!search || search.largest === null) return [];
    const fits = trials.filter((trial) => trial.state === "fits");
    const of = (size: number | null) => fits.find((trial) => trial.size === size);
    const largest = of(search.largest);
    const beyond = trials.find((trial) => trial.state === "memory" && trial.size > (search.largest ?? 0));
    const end = beyond ? words.didNotFit(name(beyond)) : words.noLargerTried;
    const out: Limit[] = [{ what: "memory", trial: largest, text: words.memory(largest ? name(largest) : String(search.largest)), reason: end }];
    const fastest = of(search.fastest);
    if (fastest) out.push({ what: "speed", trial: fastest, text: words.speed(name(fastest)), reason: fastest === largest ? end : words.speedReason });
    if (search.noise !== null) {
      const about = Number(search.noise.toPrecision(2));
      const near = fits.length ? fits.reduce((a, b) => (away(a, about) <= away(b, about) ? a : b)) : undefined;
      out.push({ what: "noise", trial: near, text: words.noise(about), reason: sentence(search.noise_reason) });
    } else if (search.noise_reason) out.push({ what: "noise", trial: undefined, text: words.noiseUnknown, reason: sentence(search.noise_reason) });
    const best = of(search.best);
    if (best) out.push({ what: "recommended", trial: best, text: words.recommended(name(best)), reason: sentence(search.reason.replace(/^\d+: /, "")) });
    return out;
  }

  private item({ what, text, reason, trial }: Limit): HTMLElement {
    const item = el("li", what === "recommended" ? "wb-best" : "");
    if (!trial || this.store.state.followed) item.append(el("b", "", text));
    else {
      const button = el("button", "wb-tool", text, { type: "button", "data-what": what, title: texts.use(name(trial)), "aria-label": words.use(text, name(trial)) });
      button.addEventListener("click", () => this.use(trial));
      item.append(button);
    }
    item.append(el("span", "", reason));
    return item;
  }
}

/** How many times one is the other: samples of an update are compared. */
function away(trial: Trial, samples: number): number {
  return Math.abs(Math.log((trial.size * (trial.batches ?? 1)) / samples));
}

function sentence(text: string): string {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return begun === "" || /[.?!]$/.test(begun) ? begun : `${begun}.`;
}
