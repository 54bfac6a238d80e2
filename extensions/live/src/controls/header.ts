// The four steps: batch size, learning rate, clipping, epochs, each with its box and the search for its value.

import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";
import { PanelButton } from "./button";
import { Field } from "./field";
import { RateSlider } from "./rate-slider";

const { controls: words } = texts;

export class Header {
  readonly root = el("div", "wb-four");
  private readonly fields: Record<string, Field>;
  private readonly buttons: PanelButton[] = [];
  private readonly each = el("span");
  private readonly slider: RateSlider;
  private readonly keep = el("label", "wb-keep");
  private readonly tick = el("input", "wb-tick", "", { type: "checkbox" });
  private readonly keepText = el("span");
  private readonly optimizer = el("select", "wb-box", "", { title: words.optimizerTooltip, "aria-label": words.optimizer });

  constructor(private readonly store: Store) {
    const field = (name: string, label: string, className: string) => new Field(store, name, { label, className });
    this.fields = {
      batch_size: field("batch_size", words.batchSize, "wb-short"),
      lr: field("lr", words.learningRate, "wb-medium"),
      gradient_clip_val: field("gradient_clip_val", words.clippingLabel, "wb-short"),
      max_epochs: field("max_epochs", words.epochs, "wb-short"),
    };
    this.slider = new RateSlider(store);
    this.keep.append(this.tick, this.keepText);
    this.tick.addEventListener("change", () => store.request("press", { button: "keep" }));
    this.optimizer.addEventListener("change", () => store.request("choose_optimizer", { number: this.optimizer.selectedIndex }));
    this.root.append(
      this.step("①", words.batchSize, this.each, "batch_size", [], [this.button("find_batch_size"), this.keep]),
      this.step("②", words.learningRate, this.slider.note, "lr", [this.slider.root], [this.button("find_lr"), this.button("race"), this.optimizer]),
      this.step("③", words.clipping, el("span", "", words.clippingNote), "gradient_clip_val", [], [this.button("find_clip_val")]),
      this.step("④", words.epochs, el("span"), "max_epochs", [], []),
    );
    this.root.children[1]!.classList.add("wb-step-lr");
    this.draw();
  }

  /** A panel of a job of another process has no steps. */
  draw(): void {
    const { steps, buttons } = this.store.state;
    this.root.hidden = steps === undefined;
    if (steps === undefined) return;
    for (const [name, field] of Object.entries(this.fields)) {
      field.placeholder = steps.placeholders[name] ?? "";
      field.control.title = steps.help[name] ?? "";
      field.draw();
    }
    this.buttons.forEach((button) => button.draw());
    setText(this.each, steps.each);
    this.slider.draw();
    const keep = buttons?.["keep"];
    if (keep) {
      this.tick.checked = keep.pressed === true;
      this.tick.disabled = keep.disabled || this.store.lost;
      this.keep.title = keep.tooltip;
      setText(this.keepText, keep.text);
    }
    this.optimizer.hidden = steps.optimizers < 2;
    if (this.optimizer.options.length !== steps.optimizers) {
      this.optimizer.replaceChildren(...Array.from({ length: steps.optimizers }, (_, i) => el("option", "", words.ofOptimizer(i))));
    }
    this.optimizer.selectedIndex = steps.optimizer;
  }

  move(): void {
    this.slider.draw();
  }

  private step(number: string, title: string, note: HTMLElement, setting: string, before: HTMLElement[], after: HTMLElement[]): HTMLElement {
    const { control, why } = this.fields[setting]!;
    const [step, name, row] = [el("section", "wb-step", "", { "aria-label": title }), el("div", "wb-step-name"), el("div", "wb-step-row")];
    name.append(`${number} `, el("b", "", title), note);
    row.append(...before, control, ...after);
    step.append(name, row, why);
    return step;
  }

  private button(name: string): HTMLElement {
    const button = new PanelButton(this.store, name);
    this.buttons.push(button);
    return button.root;
  }
}
