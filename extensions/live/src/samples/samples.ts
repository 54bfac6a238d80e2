// The card with samples of predictions: what the functions of bench.watch returned at a validation, the newest or an earlier one.

import { Card } from "../shared/card";
import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import type { SampleSet, TextPart } from "../data/messages";
import { texts } from "../texts";

const { samples: words } = texts;
/** A small picture is enlarged to about this many pixels, by a whole number, so that its pixels stay squares. */
const LEAST = 112;

export class Samples {
  readonly card = new Card(words.title, words.hint, "samples-card");
  private readonly list = el("div", "wb-samples");
  private readonly before = el("button", "wb-tool", "◀", { type: "button", title: words.earlier, "aria-label": words.earlier });
  private readonly after = el("button", "wb-tool", "▶", { type: "button", title: words.later, "aria-label": words.later });
  private readonly newest = el("button", "wb-tool", words.newest, { type: "button", title: words.newestTooltip });
  private readonly place = el("input", "", "", { type: "range", min: "0", step: "1", "aria-label": words.slider });
  private shown = -1;

  constructor(private readonly store: Store) {
    this.card.tools.append(this.before, this.place, this.after, this.newest);
    this.card.body.append(this.list);
    this.before.addEventListener("click", () => this.go(-1));
    this.after.addEventListener("click", () => this.go(1));
    this.newest.addEventListener("click", () => this.ask((store.state.samples?.count ?? 1) - 1));
    this.place.addEventListener("input", () => this.ask(Number(this.place.value)));
  }

  /** Until all parts of a validation are there, what was shown before it stays. */
  draw(): void {
    const { samples, still = false } = this.store.state;
    this.card.empty = !samples;
    if (!samples) return;
    const { count, place, step, epoch, of } = samples;
    for (const tool of [this.before, this.after, this.newest, this.place]) tool.hidden = still || count < 2;
    this.before.disabled = place === 0;
    this.after.disabled = this.newest.disabled = place === count - 1;
    this.place.max = String(count - 1);
    this.place.value = String(place);
    this.place.setAttribute("aria-valuetext", words.at(step, epoch + 1));
    this.card.setAt(words.at(step, epoch + 1));
    const parts = Array.from({ length: samples.parts }, (_, i) => this.part(i));
    if (of === this.shown || !parts.length || !parts.every((part) => part?.of === of)) return;
    this.shown = of;
    const sets = JSON.parse(parts.map((part) => part?.text).join("")) as SampleSet[];
    this.list.replaceChildren(...sets.map((set) => this.set(set, sets.length > 1)));
  }

  private go(by: number): void {
    this.ask((this.store.state.samples?.place ?? 0) + by);
  }

  private ask(place: number): void {
    this.store.request("samples", { place });
  }

  private part(number: number): TextPart | null | undefined {
    return (this.store.state as Record<string, unknown>)[`sample.${number}`] as TextPart | null | undefined;
  }

  /** What one function returned. named: there are several. */
  private set({ name, items, left_out, why }: SampleSet, named: boolean): HTMLElement {
    const set = el("section", "wb-sample-set", "", { "aria-label": name });
    if (named) set.append(el("h5", "", name));
    let group = "";
    for (const { label, note, text, png } of items) {
      const key = label.replace(/\/?[^/]*$/, ""); // pictures of one key are one row: rows are compared
      if (key !== group && set.querySelector("figure")) set.append(el("i", "wb-sample-row"));
      group = key;
      const item = el("figure", png ? "wb-sample" : "wb-sample wb-sample-text");
      if (png) {
        const picture = el("img", "", "", { alt: label || name, src: `data:image/png;base64,${png}` });
        picture.addEventListener("load", () => enlarge(picture));
        item.append(picture);
      } else item.append(el("pre", "", text));
      const caption = el("figcaption");
      setText(caption, [label, note].filter(Boolean).join(texts.separator));
      if (caption.textContent) item.append(caption);
      set.append(item);
    }
    const rest = why || (left_out ? words.leftOut(left_out) : "");
    if (rest) set.append(el("p", "wb-muted", rest));
    return set;
  }
}

/** The pixels of a small picture are seen, as squares; a large one is as wide as the place allows. */
function enlarge(picture: HTMLImageElement): void {
  const times = Math.max(1, Math.ceil(LEAST / Math.max(picture.naturalWidth, picture.naturalHeight)));
  picture.style.width = `${times * picture.naturalWidth}px`;
  picture.classList.toggle("wb-sample-pixels", times > 1);
}
