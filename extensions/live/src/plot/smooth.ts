// Smooths lines with a running mean, over a span that a slider sets.

import { el, setText } from "../shared/dom";
import type { Value } from "./layers";
import { texts } from "../texts";

const { smoothing: words } = texts;
const AUTO = "auto";
/** None, automatic, or a mean over so many updates. */
const SPANS: (number | typeof AUTO)[] = [0, AUTO, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
export type Span = number | typeof AUTO;

export class Smoothing {
  readonly root = el("label", "wb-smooth", words.slider);
  private readonly slider = el("input", "", "", { type: "range", min: "0", max: String(SPANS.length - 1), step: "1" });
  private readonly value = el("output");

  /** `changed`: hears the new span. */
  constructor(span: Span, changed: (span: Span) => void) {
    this.root.append(this.slider, this.value);
    this.slider.value = String(Math.max(0, SPANS.indexOf(span)));
    this.slider.addEventListener("input", () => {
      this.tell();
      changed(this.span);
    });
    this.slider.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has commands on these keys
    this.tell();
  }

  get span(): Span {
    return SPANS[Number(this.slider.value)] ?? AUTO;
  }

  private tell(): void {
    const { span } = this;
    const short = span === AUTO ? words.auto : span === 0 ? words.off : String(span);
    const long = span === AUTO ? words.autoLong : span === 0 ? words.offLong : words.spanLong(span);
    setText(this.value, short);
    this.slider.setAttribute("aria-label", words.label);
    this.slider.setAttribute("aria-valuetext", long);
    this.root.title = words.tooltip(long);
  }
}

/**
 * A running mean; gaps stay gaps. `width`: updates from one value to the next. `log`: the mean is of the logarithms, for a
 * logarithmic axis. Automatic is a mean over the last tenth, as in workbench/plots/smooth.py.
 */
export function smoothed(values: ArrayLike<Value>, span: Span, width: number, log = false): Value[] {
  let [mean, seen] = [0, 0];
  return Array.from(values, (value) => {
    if (value === null || !Number.isFinite(value) || (log && value <= 0)) return null;
    if (span === 0) return value;
    seen += 1;
    const window = span === AUTO ? Math.min(Math.max(seen / 10, 5), 200) : Math.max(1, span / width);
    mean += ((log ? Math.log(value) : value) - mean) / Math.min(window, seen);
    return log ? Math.exp(mean) : mean;
  });
}
