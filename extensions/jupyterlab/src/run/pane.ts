// The pane of one run: its state and what can be done with it, its plots, and all that its folder has.

import type { CommandRegistry } from "@lumino/commands";
import type { Message } from "@lumino/messaging";
import { Signal } from "@lumino/signaling";
import { Widget } from "@lumino/widgets";
import { el } from "../../../live/src/shared/dom";
import { ApiError, NoServerError } from "../api";
import type { Client } from "../client";
import { pause } from "../connection";
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

/** Between two looks at a run at least: many runs may begin at once. */
const PAUSE_MS = 1000;
const CHECKPOINTS_MS = 5000;

export interface RunPaneOptions {
  client: Client;
  commands: CommandRegistry;
  looks: Promise<Looks>;
  texts: Texts;
  words: PaneTexts;
}

/** A pane with plots. It asks for its runs while it is seen, and says which of them are gone, and when the connection is lost. */
abstract class CanvasPane extends Widget {
  protected readonly content = el("div", "wb-pane-content");
  /** The number of the last question. */
  protected asked = 0;
  /** Why runs cannot be shown. */
  protected failures: [Ref, unknown][] = [];
  private readonly notice = el("div", "wb-pane-message", "", { role: "status" });
  private readonly canvas: RunCanvas;
  /** The number of the question whose answer is shown. */
  private answered = 0;
  /** Whether any run was there. */
  private found = false;
  private connected = false;
  private lost = false;
  private stale = true;
  private tries = 0;
  private lookedAt = 0;
  private due = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly refs: Ref[], protected readonly options: RunPaneOptions) {
    super();
    const { client, looks, words } = options;
    this.addClass("wb-pane");
    this.title.icon = runsIcon;
    this.title.closable = true;
    this.notice.hidden = true;
    this.canvas = new RunCanvas(client.api, looks, words);
    this.canvas.onConnected = (connected) => this.connection(connected);
    this.content.append(this.notice, this.canvas.root);
    this.node.append(this.content);
    this.node.tabIndex = -1;
    client.events.connect(this.hear, this);
    client.linked.connect((_, link) => {
      if (link === "open") this.lookSoon(0);
    }, this);
  }

  override dispose(): void {
    if (this.isDisposed) return;
    clearTimeout(this.timer);
    this.canvas.dispose();
    Signal.clearData(this);
    super.dispose();
  }

  protected abstract hear(client: Client, event: Event): void;

  /** Draw what the server knows of the runs that are there. question: which question that answers. */
  protected abstract draw(details: Details[], question: number): void;

  /** Ask for the runs so long after the last time; a pane that is not seen asks when it is shown. */
  protected lookSoon(pause = PAUSE_MS): void {
    this.stale = true;
    const due = this.lookedAt + pause;
    if (!this.isVisible || (this.timer !== undefined && this.due <= due)) return;
    clearTimeout(this.timer);
    this.due = due;
    this.timer = setTimeout(() => void this.look(), Math.max(0, due - Date.now()));
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    if (!this.node.contains(document.activeElement)) this.node.focus();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.seen();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.seen();
  }

  protected override onBeforeHide(message: Message): void {
    super.onBeforeHide(message);
    clearTimeout(this.timer);
    this.timer = undefined;
    this.stale = true;
  }

  private seen(): void {
    if (this.stale) this.lookSoon(0); // not at once: JupyterLab shows panes for a moment while it puts them in their places
  }

  private async look(): Promise<void> {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.stale = !this.isVisible;
    this.lookedAt = Date.now();
    const question = ++this.asked;
    const { api } = this.options.client;
    const answers = await Promise.allSettled(this.refs.map((ref) => api.run(ref)));
    if (this.isDisposed || question < this.answered) return; // a later question was answered earlier
    this.answered = question;
    const details = answers.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
    this.failures = answers.flatMap((one, i): [Ref, unknown][] => (one.status === "rejected" ? [[this.refs[i]!, one.reason]] : []));
    this.found ||= details.length > 0;
    this.tries = this.failures.every(([, error]) => isGone(error)) ? 0 : this.tries + 1;
    if (!this.failures.some(([, error]) => !(error instanceof ApiError) || error instanceof NoServerError) && (this.isVisible || this.failures.length > 0)) this.canvas.show(this.left);
    if (this.isVisible && details.length > 0) this.draw(details, question);
    this.drawNotice();
    if (details.some(({ reading }) => reading)) this.lookSoon();
    const { link } = this.options.client;
    if (this.tries > 0 && link !== "lost" && link !== "absent") this.lookSoon(pause(this.tries - 1, Math.random())); // else when it is open again
  }

  /** The runs to plot: without those that are gone; none where a comparison has lost all but one. */
  private get left(): Ref[] {
    const gone = this.failures.filter(([, error]) => isGone(error)).map(([ref]) => ref);
    const left = this.refs.filter((ref) => !gone.includes(ref));
    return left.length > 1 || this.refs.length === 1 ? left : [];
  }

  /** A websocket ends in the same way for a deleted run and for a lost connection: the pane asks the server before it shows which. */
  private connection(connected: boolean): void {
    this.connected = connected;
    this.lost &&= !connected;
    this.drawNotice();
    if (connected) return;
    const asked = this.options.client.link === "open" ? this.look() : Promise.resolve();
    void asked.then(() => {
      if (this.isDisposed) return;
      this.lost = !this.connected && this.left.length > 0;
      this.drawNotice();
    });
  }

  private drawNotice(): void {
    const { words, client } = this.options;
    const gone = this.failures.some(([, error]) => isGone(error));
    const why = this.failures.filter(([, error]) => isGone(error) || !this.found).map(([{ run }, error]) => (error instanceof NoServerError ? error.message : words.missing(run, error instanceof Error ? error.message : String(error))));
    if (gone && this.refs.length > 1 && this.left.length === 0) why.push(words.nothingToCompare);
    const text = [...new Set(why)].join(" ") || (this.lost ? words.lost : "");
    const label = gone ? words.close : text ? words.retry : "";
    if (this.notice.textContent === text + label) return;
    this.notice.hidden = !text;
    this.notice.textContent = text;
    if (!label) return;
    const button = el("button", "wb-pane-button", label, { type: "button" });
    button.addEventListener("click", () => {
      if (gone) return (this.parent ?? this).close(); // the parent: JupyterLab's frame around it
      client.retry();
      this.canvas.retry();
      void this.look();
    });
    this.notice.append(button);
  }
}

/** Whether the server says of a run that there is none, or none for this person. */
function isGone(error: unknown): boolean {
  return error instanceof ApiError && !(error instanceof NoServerError) && error.status < 500;
}

export class RunPane extends CanvasPane {
  private readonly bar: RunBar;
  private readonly sections: RunSections;
  private readonly output: OutputText;
  private details: Details | null = null;
  /** The last row of an event, and the number of the last question then. */
  private heard: { row: Row; asked: number } | null = null;

  constructor(readonly ref: Ref, options: RunPaneOptions) {
    super([ref], options);
    const { client, commands, texts, words } = options;
    this.bar = new RunBar(commands, texts, words);
    this.output = new OutputText(client.api, ref, words);
    this.sections = new RunSections(words, this.output);
    this.content.prepend(this.bar.root);
    this.content.append(this.sections.root);
    this.bar.root.hidden = true;
    this.name(ref.run);
  }

  override dispose(): void {
    this.output.stop();
    super.dispose();
  }

  protected override onBeforeHide(message: Message): void {
    super.onBeforeHide(message);
    this.output.stop();
  }

  protected override draw([details]: Details[], question: number): void {
    const { heard } = this;
    const newer = heard !== null && heard.asked >= question && isLive(details!.row); // what is over stays so
    this.drawNow(newer ? { ...details!, row: heard.row } : details!);
  }

  protected override hear(_: Client, event: Event): void {
    if (event.type === "list") return this.lookSoon();
    const rows: Row[] = event.type === "rows" ? event.rows : [event.row];
    const row = rows.find((one) => keyOf(one) === keyOf(this.ref));
    if (row === undefined) return;
    this.heard = { row, asked: this.asked };
    this.name(nameOf(row));
    const { details } = this;
    if (event.type !== "rows" || (details !== null && row.status !== details.row.status)) this.lookSoon(0);
    else if (details === null) this.lookSoon();
    else if (isLive(row)) this.lookSoon(CHECKPOINTS_MS); // it may have a new checkpoint
    if (details !== null && this.isVisible) this.drawNow({ ...details, row });
  }

  private drawNow(details: Details): void {
    this.details = details;
    this.bar.root.hidden = false;
    this.name(nameOf(details.row));
    this.bar.draw(details);
    this.sections.draw(details);
  }

  private name(name: string): void {
    this.title.label = name;
    this.title.caption = this.options.words.title(this.ref.run);
  }
}

/** Several runs over one another. */
export class ComparePane extends CanvasPane {
  constructor(refs: Ref[], options: RunPaneOptions) {
    super(refs, options);
    this.title.label = options.words.comparison(refs.length);
    this.title.caption = refs.map(({ run }) => run).join(", ");
  }

  protected override hear(_: Client, event: Event): void {
    if (event.type === "list" && this.failures.length > 0) this.lookSoon();
  }

  /** The plots are all that it has. */
  protected override draw(): void {}
}
