// The slider of the learning rate, over powers of ten. It snaps to the suggestion of the last sweep, which has a tick, and says where a
// rate is beyond the edge at which the loss diverged.

import { el, setText } from "../shared/dom";
import { rate } from "../shared/format";
import { NumberTrait } from "../shared/number-trait";
import type { Store } from "../data/store";
import { texts } from "../texts";

/** Its range, as powers of ten. A rate outside of it is shown at its end. */
const LOWEST = -7, HIGHEST = 1, STEP = 0.02;
/** So near, in powers of ten, it snaps. */
const NEAR = 0.05;

const { controls: words } = texts;

export class RateSlider {
  readonly root = el("span", "wb-slider");
  readonly note = el("span", "wb-beyond", "", { role: "status" });
  private readonly range = el("input", "", "", {
    type: "range", min: String(LOWEST), max: String(HIGHEST), step: String(STEP), "aria-label": words.slider,
  });
  private readonly tick = el("i", "wb-slider-tick", "", { "aria-hidden": "true" });
  private readonly readout = el("output", "", "", { "aria-hidden": "true" });
  private readonly trait: NumberTrait;
  private isDragged = false;

  constructor(private readonly store: Store) {
    this.trait = new NumberTrait(store.model, "marker");
    this.root.append(this.range, this.tick, this.readout);
    this.range.addEventListener("input", () => {
      this.isDragged = true;
      this.say(this.chosen());
    });
    this.range.addEventListener("change", () => {
      this.isDragged = false;
      this.trait.drag(this.chosen());
      this.trait.drop();
      this.draw();
    });
    this.draw();
  }

  draw(): void {
    const { suggestion } = this.store.state.curve ?? {};
    this.tick.hidden = !suggestion;
    if (suggestion) this.tick.style.setProperty("--at", String((onSlider(suggestion) - LOWEST) / (HIGHEST - LOWEST)));
    if (this.isDragged) return;
    const value = this.trait.value;
    this.range.value = String(onSlider(value));
    this.say(value);
  }

  /** The rate at the handle: the suggestion where that is near. */
  private chosen(): number {
    const power = Number(this.range.value);
    const { suggestion } = this.store.state.curve ?? {};
    if (suggestion && Math.abs(Math.log10(suggestion) - power) <= NEAR) return suggestion;
    return rounded(10 ** power);
  }

  private say(value: number): void {
    const { diverged } = this.store.state.curve ?? {};
    const isBeyond = diverged != null && value >= diverged;
    this.root.toggleAttribute("data-beyond", isBeyond);
    setText(this.note, isBeyond ? words.beyond : "");
    setText(this.readout, rate(value));
    this.range.setAttribute("aria-valuetext", isBeyond ? texts.list([rate(value), words.beyond]) : rate(value));
  }
}

/** The slider's nearest step, as a power of ten. */
export function onSlider(value: number): number {
  const power = value > 0 ? Math.log10(value) : LOWEST;
  return Number((Math.round(Math.min(Math.max(power, LOWEST), HIGHEST) / STEP) * STEP).toFixed(6));
}

/** A rate as a person would write it, at the same step of the slider: 3.2e-3, not 0.0031622776. */
export function rounded(value: number): number {
  const short = Number(value.toPrecision(2));
  return onSlider(short) === onSlider(value) ? short : Number(value.toPrecision(3));
}
