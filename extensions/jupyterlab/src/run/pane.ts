// The pane of one run: its state and what can be done with it, its plots, and all that its folder has.

import type { CommandRegistry } from "@lumino/commands";
import type { Message } from "@lumino/messaging";
import { Signal } from "@lumino/signaling";
import { Widget } from "@lumino/widgets";
import { el } from "../../../live/src/shared/dom";
import type { Client } from "../client";
import { runsIcon } from "../icon";
import { isLive, keyOf, type Details, type Event, type Ref, type Row } from "../messages";
import { nameOf } from "../runs/words";
import type { Texts } from "../texts";
import { RunBar } from "./bar";
import { RunCanvas } from "./canvas";
import type { Looks } from "./canvas-model";
import { OutputText } from "./output";
import { RunSections } from "./sections";
import type { PaneTexts } from "./texts";

const CHECKPOINTS_MS = 5000;

export interface RunPaneOptions {
  client: Client;
  commands: CommandRegistry;
  looks: Promise<Looks>;
  texts: Texts;
  words: PaneTexts;
}

/** A pane with plots, which says when the connection is lost. */
abstract class CanvasPane extends Widget {
  protected readonly content = el("div", "wb-pane-content");
  private readonly lost: HTMLElement;
  private readonly canvas: RunCanvas;

  constructor(refs: Ref[], { client, looks, words }: RunPaneOptions) {
    super();
    this.addClass("wb-pane");
    this.title.icon = runsIcon;
    this.title.closable = true;
    this.lost = el("p", "wb-pane-message", words.lost, { role: "status" });
    this.lost.hidden = true;
    this.canvas = new RunCanvas(client.api, refs, looks, words);
    this.canvas.onConnected = (connected) => {
      this.lost.hidden = connected;
    };
    this.content.append(this.lost, this.canvas.root);
    this.node.append(this.content);
    this.node.tabIndex = -1;
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.canvas.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    if (!this.node.contains(document.activeElement)) this.node.focus();
  }
}

export class RunPane extends CanvasPane {
  private readonly bar: RunBar;
  private readonly sections: RunSections;
  private readonly output: OutputText;
  private readonly missing = el("div", "wb-pane-message", "", { role: "alert" });
  private details: Details | null = null;
  private readAt = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly ref: Ref, private readonly options: RunPaneOptions) {
    super([ref], options);
    const { client, commands, texts, words } = options;
    this.bar = new RunBar(commands, texts, words);
    this.output = new OutputText(client.api, ref, words, (error) => console.warn(error));
    this.sections = new RunSections(words, this.output);
    this.missing.hidden = true;
    this.content.prepend(this.missing, this.bar.root);
    this.content.append(this.sections.root);
    this.bar.root.hidden = true;
    this.name(ref.run);
    client.events.connect(this.hear, this);
    client.linked.connect((_, link) => {
      if (link === "open") void this.read();
    }, this);
    void this.read();
  }

  override dispose(): void {
    clearTimeout(this.timer);
    this.output.stop();
    super.dispose();
  }

  /** Ask the server for all that it knows of the run. */
  private async read(): Promise<void> {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.readAt = Date.now();
    try {
      const details = await this.options.client.api.run(this.ref);
      if (!this.isDisposed) this.draw(details);
    } catch (error) {
      if (this.isDisposed) return;
      this.missing.hidden = false;
      this.missing.textContent = this.options.words.missing(this.ref.run, error instanceof Error ? error.message : String(error));
    }
  }

  private draw(details: Details): void {
    this.details = details;
    this.missing.hidden = true;
    this.bar.root.hidden = false;
    this.name(nameOf(details.row));
    this.bar.draw(details);
    this.sections.draw(details);
  }

  private hear(_: Client, event: Event): void {
    if (event.type === "list") {
      void this.read();
      return;
    }
    const rows: Row[] = event.type === "rows" ? event.rows : [event.row];
    const row = rows.find((one) => keyOf(one) === keyOf(this.ref));
    if (row === undefined) return;
    if (event.type !== "rows" || this.details === null || row.status !== this.details.row.status) void this.read();
    else {
      this.draw({ ...this.details, row });
      if (isLive(row)) this.timer ??= setTimeout(() => void this.read(), Math.max(0, this.readAt + CHECKPOINTS_MS - Date.now())); // it may have a new checkpoint
    }
  }

  private name(name: string): void {
    this.title.label = name;
    this.title.caption = this.options.words.title(this.ref.run);
  }
}

/** Several runs over one another. */
export class ComparePane extends CanvasPane {
  constructor(readonly refs: Ref[], options: RunPaneOptions) {
    super(refs, options);
    this.title.label = options.words.comparison(refs.length);
    this.title.caption = refs.map(({ run }) => run).join(", ");
  }
}
