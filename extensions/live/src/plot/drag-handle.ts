// A line with a grip over a plot that sets a value on a logarithmic axis, by mouse, touch or keyboard.

import type uPlot from "uplot";
import type { NumberTrait } from "../shared/number-trait";
import { el, setText } from "../shared/dom";
import { rate } from "../shared/format";
import { texts } from "../texts";

const STEP = 10 ** 0.025; // forty key presses a decade
const LEAP = 10 ** 0.25; // with Shift, or Page Up and Page Down
const ROUND = 1.005; // a chosen value has three digits: at an end of the scale it may lie this far beyond

/** Where the plot's values are not those that are chosen. */
export interface Shown {
  /** The plot's value at a chosen value of 1. */
  factor: () => number;
  /** What stands beside the line at a value of the plot. */
  text: (value: number) => string;
}

export class DragHandle {
  private readonly line: HTMLElement;
  private readonly grip: HTMLElement;
  private readonly text: HTMLElement;
  private plot: uPlot | null = null;

  constructor(
    private readonly axis: "x" | "y",
    private readonly choice: NumberTrait,
    label: string,
    private readonly moved: () => void,
    private readonly shown: Shown = { factor: () => 1, text: rate },
  ) {
    this.line = el("div", `wb-handle wb-handle-${axis}`);
    this.grip = el("div", "wb-grip", axis === "x" ? "▲" : "◀", {
      role: "slider",
      tabindex: "0",
      "aria-label": label,
      "aria-orientation": axis === "x" ? "horizontal" : "vertical",
      title: texts.plot.dragHandle(label),
    });
    this.text = el("span", "wb-handle-value");
    this.line.append(this.text, this.grip);
    this.grip.addEventListener("pointerdown", (event) => this.down(event));
    this.grip.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** The chosen value, as the plot has it. */
  get value(): number {
    return this.choice.value * this.shown.factor();
  }

  attach(plot: uPlot): void {
    this.plot = plot;
    plot.over.append(this.line);
    this.place();
  }

  /** Give the grip the focus, at its place now. */
  focus(): void {
    this.place();
    this.grip.focus();
  }

  /** Move the line to the chosen value; a value outside the scale waits at its edge. */
  place(): void {
    const { plot, axis } = this;
    const { min, max } = plot?.scales[axis] ?? {};
    const value = this.value;
    const shown = plot !== null && min != null && max != null && value > 0;
    this.line.hidden = !shown;
    if (!shown) return;
    const inside = Math.min(Math.max(value, min), max);
    const at = plot.valToPos(inside, axis);
    const words = this.shown.text(value);
    this.line.style.transform = axis === "x" ? `translateX(${at}px)` : `translateY(${at}px)`;
    this.line.classList.toggle("wb-outside", inside !== value);
    setText(this.text, words);
    this.line.classList.toggle("wb-flip", axis === "x" && at + this.text.offsetWidth + 8 > plot.over.clientWidth);
    this.grip.setAttribute("aria-valuenow", String(inside));
    this.grip.setAttribute("aria-valuetext", words);
    this.grip.setAttribute("aria-valuemin", String(min));
    this.grip.setAttribute("aria-valuemax", String(max));
  }

  private move(value: number): void {
    this.choice.drag(value / this.shown.factor());
    this.place();
    this.moved();
  }

  private down(event: PointerEvent): void {
    const plot = this.plot;
    if (!plot || event.button !== 0) return;
    event.preventDefault();
    this.grip.focus();
    this.grip.setPointerCapture(event.pointerId);
    const drag = (e: PointerEvent) => {
      const box = plot.over.getBoundingClientRect();
      const [at, length] = this.axis === "x" ? [e.clientX - box.left, box.width] : [e.clientY - box.top, box.height];
      this.move(plot.posToVal(Math.min(Math.max(at, 0), length), this.axis));
    };
    const up = () => {
      this.grip.removeEventListener("pointermove", drag);
      this.choice.drop();
    };
    this.grip.addEventListener("pointermove", drag);
    this.grip.addEventListener("lostpointercapture", up, { once: true });
  }

  private pressed(event: KeyboardEvent): void {
    const { min, max } = this.plot?.scales[this.axis] ?? {};
    if (min == null || max == null) return;
    const factor = event.shiftKey || event.key.startsWith("Page") ? LEAP : STEP;
    let value = this.value;
    let inside = value >= min / ROUND && value <= max * ROUND; // one that waits at the edge moves from where it is
    if (["ArrowRight", "ArrowUp", "PageUp"].includes(event.key)) value *= factor;
    else if (["ArrowLeft", "ArrowDown", "PageDown"].includes(event.key)) value /= factor;
    else if (event.key === "Home" || event.key === "End") [value, inside] = [event.key === "Home" ? min : max, true];
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has commands on the arrow keys
    this.move(inside ? Math.min(Math.max(value, min), max) : value);
    this.choice.drop();
  }
}
