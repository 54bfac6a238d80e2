// Keeps what Python has sent to one widget model. All views of the model draw from it.

import { focusIn } from "../shared/dom";
import type { AnyModel } from "./anywidget";
import { watchKernel } from "./kernel";
import { Table } from "./table";
import { isDraw, type FieldState, type State } from "./messages";

export type Topic = keyof State | "fit" | "val" | "curve" | "earlier" | "heat" | "picked" | "clock" | "notes" | "rows" | "sample" | "field" | "marker" | "clip" | "lost" | "drawer" | "study_trial" | "study_curve";
type Listener = (topics: ReadonlySet<Topic>) => void;

const ASK_AGAIN_MS = 2000;

export class Store {
  readonly state: State = {};
  readonly fit = new Table();
  readonly val = new Table();
  readonly curve = new Table();
  readonly earlier = new Table();
  readonly heat = new Table();
  readonly picked = new Table();
  readonly rates = new Table();
  readonly past = new Table();
  readonly compared = new Table();
  readonly metrics = new Table();
  readonly clock = new Table();
  /** Whether the kernel has ended: nothing can be asked any more. */
  lost = false;
  private listeners = new Set<Listener>();
  private readonly missing = new Set<string>(); // channels that lack rows
  private pointed = { run: "", kind: "" }; // the chip under the mouse or with the focus
  private asked = 0;
  private later: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly model: AnyModel) {
    model.on("msg:custom", (content: unknown, buffers: DataView[]) => this.hear(content, buffers));
    model.on("change:marker", () => this.tell(new Set(["marker"])));
    model.on("change:clip", () => this.tell(new Set(["clip"])));
    model.on("change:looks", () => this.tell(new Set(["drawer"]))); // another view has opened a tab
    watchKernel(model, () => {
      this.lost = true;
      this.tell(new Set(["lost"]));
    });
    this.ask();
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Whether a job runs: missing rows may be on their way. */
  get jobRuns(): boolean {
    return ["running", "paused"].includes(this.state.progress?.status ?? "");
  }

  /** Whether the focus is within `part` while the first rows of a run are missing: hidden now, `part` would lose the focus. */
  mustStay(part: Element | undefined): boolean {
    return this.jobRuns && this.fit.rows.count === 0 && focusIn(part) !== null;
  }

  /** Ask Python for everything: at the start, and when rows went missing on the way; after a while if it was asked just now. */
  private ask(): void {
    const now = Date.now();
    if (this.lost) return;
    const rest = this.asked + ASK_AGAIN_MS - now;
    if (rest > 0) {
      this.later ??= setTimeout(() => this.askAgain(), rest);
      return;
    }
    this.asked = now;
    this.model.send({ type: "ask", what: "drawer", tab: this.tab });
    this.model.send({ type: "ready" });
  }

  private askAgain(): void {
    this.later = undefined;
    if (this.missing.size) this.ask();
  }

  /** Ask the bench to do something; workbench/ui/canvas/requests.py has what it knows. */
  request(what: string, args: Record<string, unknown> = {}): void {
    if (!this.lost) this.model.send({ type: "ask", what, ...args });
  }

  /** How a switch of the cards stands: as it was left, in this view or another, before the page was loaded again or since. */
  viewOption<T>(name: string, otherwise: T): T {
    const kept = (this.model.get("looks") as Record<string, T> | undefined) ?? {};
    return kept[name] ?? otherwise;
  }

  setViewOption(name: string, how: unknown): void {
    this.model.set("looks", { ...(this.model.get("looks") as Record<string, unknown>), [name]: how });
    this.model.save_changes();
  }

  /** Lay the curve of a job over the plot of this kind; "": none. */
  pointAt(run: string, kind = ""): void {
    if (run === this.pointed.run) return;
    this.pointed = { run, kind };
    if (run && run !== this.state.overlay?.run) this.request("overlay", { run });
    this.tell(new Set(["overlay"]));
  }

  /** The curve over the plot of this kind; null: there is none. */
  overlayOf(kind: string): State["overlay"] | null {
    const { overlay } = this.state;
    return overlay && this.pointed.kind === kind && this.pointed.run === overlay.run ? overlay : null;
  }

  /** What the control of a setting shows; undefined: Python has not said it. */
  field(name: string): FieldState | undefined {
    return (this.state as Record<string, unknown>)[`field.${name}`] as FieldState | undefined;
  }

  /** The open tab of the drawer, of which Python sends what it draws; "": none is open. */
  get tab(): string {
    return this.viewOption("drawer", "");
  }

  openTab(tab: string): void {
    this.setViewOption("drawer", tab);
    this.request("drawer", { tab });
  }

  private hear(content: unknown, buffers: DataView[]): void {
    if (!isDraw(content)) return;
    const names = Object.keys(content.state).map((name) => name.split(".")[0]); // parts of a script and notes of runs come on their own
    const topics = new Set<Topic>(names as Topic[]);
    Object.assign(this.state, content.state);
    content.parts.forEach((part, i) => {
      const buffer = buffers[i];
      const table = (this as unknown as Record<string, Table>)[part.channel];
      if (!(table instanceof Table) || buffer === undefined) return;
      if (table.apply(part, floats(buffer))) this.missing.delete(part.channel);
      else {
        this.missing.add(part.channel);
        this.ask();
      }
      topics.add(part.channel as Topic);
    });
    this.tell(topics);
  }

  private tell(topics: ReadonlySet<Topic>): void {
    for (const listener of this.listeners) listener(topics);
  }
}

// A copy: the view's bytes need not lie on a multiple of four.
function floats(view: DataView): Float32Array {
  const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
  return new Float32Array(bytes as ArrayBuffer);
}
