// The control of one setting: a box, a choice or a tick. A value that was refused stays, with the reason below it.

import { el, focusIn, setText } from "../shared/dom";
import type { Store } from "../data/store";

type Control = HTMLInputElement | HTMLSelectElement;

/** label: its name for a screen reader, where no visible label has it. options: those of a choice. */
export interface FieldOptions {
  label?: string;
  options?: string[];
  className?: string;
  /** The id of what explains it. */
  describedBy?: string;
}

let count = 0;

export class Field {
  readonly control: Control;
  /** Why the value was refused. */
  readonly why = el("div", "wb-why", "", { role: "alert" });
  private told: string | boolean | undefined;

  constructor(
    private readonly store: Store,
    private readonly name: string,
    private readonly given: FieldOptions = {},
  ) {
    const id = `wb-field-${(count += 1)}`;
    this.control = this.make();
    this.control.id = id;
    this.control.dataset["setting"] = name;
    this.why.id = `${id}-why`;
    if (given.label) this.control.setAttribute("aria-label", given.label);
    this.control.addEventListener("change", () => this.enter());
    // JupyterLab takes the key from the box before that reports its change.
    this.control.addEventListener("keydown", (event) => {
      if ((event as KeyboardEvent).key === "Enter") this.enter();
    });
    this.draw();
  }

  set placeholder(text: string) {
    if (this.control instanceof HTMLInputElement) this.control.placeholder = text;
  }

  set disabled(is: boolean) {
    this.control.disabled = is;
  }

  /** What is typed and not yet entered stays. */
  draw(): void {
    const field = this.store.field(this.name);
    if (field === undefined) return;
    const isTyping = focusIn(this.control) !== null && this.told !== undefined && this.entered !== this.told;
    if (!isTyping || field.shown === this.entered) this.show(field.shown);
    this.told = field.shown;
    setText(this.why, field.why && `⚠ ${field.why}`);
    this.why.hidden = !field.why;
    if (field.why) this.control.setAttribute("aria-invalid", "true");
    else this.control.removeAttribute("aria-invalid");
    const described = [field.why && this.why.id, this.given.describedBy].filter(Boolean).join(" ");
    if (described) this.control.setAttribute("aria-describedby", described);
    else this.control.removeAttribute("aria-describedby");
  }

  private enter(): void {
    if (this.entered !== this.told) this.store.request("enter", { name: this.name, value: this.entered });
  }

  private make(): Control {
    const { options = [], className = "" } = this.given;
    if (options.length) {
      const choice = el("select", `wb-box ${className}`);
      choice.append(...options.map((text) => el("option", "", text, { value: text })));
      return choice;
    }
    if (typeof this.store.field(this.name)?.shown === "boolean") return el("input", "wb-tick", "", { type: "checkbox" });
    return el("input", `wb-box ${className}`, "", { type: "text", spellcheck: "false", autocomplete: "off" });
  }

  private get entered(): string | boolean {
    return this.control.type === "checkbox" ? (this.control as HTMLInputElement).checked : this.control.value;
  }

  private show(shown: string | boolean): void {
    if (this.entered === shown) return;
    if (typeof shown === "boolean") (this.control as HTMLInputElement).checked = shown;
    else this.control.value = shown;
  }
}
