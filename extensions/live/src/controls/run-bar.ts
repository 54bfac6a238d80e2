// The bar of the buttons that start, pause and end a job; for a job of another process also the settings that can be changed in it.

import { el } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";
import { PanelButton } from "./button";
import { Field } from "./field";

const { controls: words } = texts;
const MORE = ["validate", "checkpoint", "profile"];

export class RunBar {
  readonly root = el("div", "wb-run-bar");
  private readonly bar = el("div", "wb-run", "", { role: "group", "aria-label": words.run });
  private readonly rest = el("div", "wb-run wb-more");
  private readonly live = el("span", "wb-live-settings");
  private readonly more = el("button", "wb-button", words.more, { type: "button", title: words.moreTooltip, "aria-label": words.moreTooltip });
  private readonly buttons: PanelButton[];
  private fields: Field[] = [];

  constructor(private readonly store: Store) {
    const button = (name: string, className = "") => new PanelButton(store, name, className);
    const main = [
      button("train", "wb-primary"), button("pause"), button("stop"),
      button("continue"), // after Stop, so that the button that was just pressed does not move
      button("apply", "wb-apply"), button("tune", "wb-tune"), button("export", "wb-export"),
    ];
    const more = MORE.map((name) => button(name));
    this.buttons = [...main, ...more];
    this.more.addEventListener("click", () => {
      store.setViewOption("more", !this.isOpen);
      this.draw();
    });
    this.rest.append(...more.map(({ root }) => root));
    this.bar.append(...main.map(({ root }) => root), this.more);
    this.root.append(this.bar, this.rest);
    this.draw();
  }

  draw(): void {
    const { buttons, steps, frozen = false } = this.store.state;
    this.root.hidden = buttons === undefined;
    if (buttons === undefined) return;
    this.buttons.forEach((button) => button.draw());
    const isOfBench = steps !== undefined;
    if (!isOfBench && this.fields.length === 0) this.addFields();
    this.live.hidden = isOfBench;
    for (const field of this.fields) {
      field.draw();
      field.disabled = frozen || this.store.lost;
    }
    this.more.hidden = !isOfBench;
    this.more.setAttribute("aria-expanded", String(this.isOpen));
    this.rest.hidden = isOfBench && !this.isOpen;
  }

  private get isOpen(): boolean {
    return this.store.viewOption("more", false);
  }

  private addFields(): void {
    for (const [name, label] of Object.entries(words.live)) {
      const field = new Field(this.store, name, { className: "wb-medium" });
      const holder = el("label", "wb-live-setting", label, { for: field.control.id });
      this.live.append(holder, field.control, field.why);
      this.fields.push(field);
    }
    this.bar.querySelector(".wb-apply")!.before(this.live);
  }
}
