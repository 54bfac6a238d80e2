// Shows the script of a run before it is written, over the right side of the canvas: to read, to copy, to write into a file.

import { copyText } from "./code-line";
import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import type { TextPart } from "../data/messages";
import { texts } from "../texts";

const { script: words } = texts;
const ENDINGS: Record<string, string> = { script: ".py", notebook: ".ipynb", settings: ".yaml", lightning: ".py", workbench: ".py", page: ".html" };

export class Script {
  readonly root = el("section", "wb-card wb-script", "", { "aria-label": words.label });
  private readonly title = el("h4");
  private readonly length = el("span", "wb-key-item");
  private readonly path = el("input", "", "", { type: "text", value: "train.py", "aria-label": words.path, spellcheck: "false" });
  private readonly format = el("select", "", "", { "aria-label": words.format });
  private readonly options = el("div", "wb-script-options", "", { role: "group", "aria-label": words.options });
  private readonly refused = el("span", "wb-script-refused", "", { role: "status" });
  private readonly write = el("button", "wb-tool wb-strong", words.write, { type: "submit", title: words.writeTooltip });
  private readonly writing = el("span", "wb-script-writing", "", { role: "status" });
  private readonly ticks = new Map<string, HTMLInputElement>();
  private readonly code = el("pre", "", "", { tabindex: "0", role: "region", "aria-label": words.text });

  constructor(private readonly store: Store) {
    const [head, foot, tools] = [el("header", "wb-head"), el("form", "wb-script-foot"), el("span", "wb-tools")];
    const copy = el("button", "wb-tool", texts.copy, { type: "button", title: words.copyTooltip });
    const close = el("button", "wb-tool", texts.close, { type: "button", title: words.closeTooltip });
    tools.append(copy, close);
    head.append(this.title, this.length, tools);
    for (const [value, text] of Object.entries(words.formats)) this.format.append(el("option", "", text, { value }));
    foot.append(this.format, this.path, this.write, this.writing);
    this.options.append(el("span", "", words.options));
    for (const [name, [text, tooltip]] of Object.entries(words.option)) this.options.append(this.option(name, text, tooltip));
    this.options.append(this.refused);
    this.root.append(head, this.code, this.options, foot);
    this.root.hidden = true;
    copy.addEventListener("click", () => void copyText(this.code, copy));
    close.addEventListener("click", () => this.close());
    this.format.addEventListener("change", () => {
      this.path.value = this.path.value.replace(/\.(py|ipynb|ya?ml|html?)$/, "") + ENDINGS[this.format.value];
      store.request("choose_format", { format: this.format.value });
    });
    foot.addEventListener("submit", (event) => {
      event.preventDefault();
      store.request("write_script", { path: this.path.value });
    });
    this.root.addEventListener("keydown", (event) => {
      event.stopPropagation(); // Jupyter has shortcuts of its own for what is typed here
      if (event.key === "Escape") this.close();
    });
    this.draw();
  }

  /** Until all parts of a script are there, what was shown before it stays. */
  draw(): void {
    const { script } = this.store.state;
    if (!script) {
      this.root.hidden = true;
      return;
    }
    const parts = Array.from({ length: script.parts }, (_, i) => this.part(i));
    if (!parts.every((part) => part?.of === script.of)) return;
    this.root.hidden = false;
    const { writing = "" } = this.store.state;
    setText(this.writing, writing && words.verifying(writing));
    this.write.disabled = writing !== "" || this.store.lost;
    this.format.value = script.format;
    this.options.hidden = !["script", "notebook"].includes(script.format);
    for (const [name, tick] of this.ticks) {
      tick.checked = script.options.includes(name);
      tick.disabled = name in script.refused;
    }
    const refused = Object.entries(script.refused).map(([name, why]) => words.refused(words.option[name]?.[0] ?? name, why));
    setText(this.refused, refused.join(" "));
    setText(this.title, words.title(words.formats[script.format] ?? words.label, script.run));
    setText(this.length, script.format === "page" ? words.unwritten : words.lines(script.lines));
    setText(this.code, parts.map((part) => part?.text).join(""));
  }

  private option(name: string, text: string, tooltip: string): HTMLElement {
    const [label, tick] = [el("label", "", "", { title: tooltip }), el("input", "", "", { type: "checkbox" })];
    label.append(tick, text);
    tick.addEventListener("change", () => this.store.request("choose_option", { option: name, wanted: tick.checked }));
    this.ticks.set(name, tick);
    return label;
  }

  /** The focus goes back to the button that opened it. */
  private close(): void {
    this.store.request("close_script");
    this.root.closest(".wb-panel")?.querySelector<HTMLElement>(".wb-run .wb-export")?.focus();
  }

  private part(number: number): TextPart | null | undefined {
    return (this.store.state as Record<string, unknown>)[`script.${number}`] as TextPart | null | undefined;
  }
}
