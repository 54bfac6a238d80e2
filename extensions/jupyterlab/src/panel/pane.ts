// The panel of a bench in a pane of its own. It finds its notebook by path, waits for it, and shows the panel by the notebook's own widgets.

import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import type { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import type { TranslationBundle } from "@jupyterlab/translation";
import { Signal, type ISignal } from "@lumino/signaling";
import { Panel, Widget } from "@lumino/widgets";
import { el } from "../../../live/src/shared/dom";
import { findPanel, WIDGET } from "./find";

const ENDED = ["dead", "terminating", "restarting", "autorestarting"];
const MANAGER_MS = 20_000, LOOK_MS = 100;

export interface Place {
  /** The path of the notebook. */
  path: string;
  /** The id of the panel's widget; "": it is to be found. */
  model: string;
}

export interface PaneOptions {
  tracker: INotebookTracker;
  /** JupyterLab's own: that of a notebook has another factory for widgets as soon as it can show them. */
  rendermime: IRenderMimeRegistry;
  trans: TranslationBundle;
  /** beside: the pane. */
  openNotebook(path: string, beside: Widget): void;
  /** Which of several benches is meant; null: none. */
  choose(names: string[]): Promise<string | null>;
}

export class PanelPane extends Panel {
  private readonly message = new Message();
  private readonly movedSignal = new Signal<this, void>(this);
  private notebook: NotebookPanel | null = null;
  private renderer: (IRenderMime.IRenderer & Panel) | null = null;
  private view: Widget | null = null;
  /** The number of the last look; those before it are overtaken. */
  private looks = 0;
  private readonly observer = new MutationObserver(() => this.followView());

  constructor(private place: Place, private readonly options: PaneOptions) {
    super();
    this.addClass("wb-pane-panel");
    this.addWidget(this.message);
    options.tracker.widgetAdded.connect(this.added, this);
    void this.look(place.model);
  }

  /** What is shown: it can be shown again by that. */
  get where(): Place {
    return this.place;
  }

  /** Emitted when `where` has changed. */
  get moved(): ISignal<this, void> {
    return this.movedSignal;
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.observer.disconnect();
    Signal.clearData(this);
    super.dispose();
  }

  /** Show the panel with this id if it lives, else another one of the notebook. */
  async look(wanted: string): Promise<void> {
    const { tracker, trans } = this.options;
    const { path } = this.place;
    const notebook = tracker.find((one) => one.context.path === path) ?? null;
    if (notebook === null) {
      this.message.say(trans.__("The panel appears here when %1 is open.", path), trans.__("Open the notebook"), () => this.options.openNotebook(path, this.parent ?? this));
      return;
    }
    this.follow(notebook);
    this.message.say(trans.__("The panel appears when the kernel of %1 answers.", path));
    const number = ++this.looks;
    const left = () => this.isDisposed || notebook.isDisposed || this.notebook !== notebook || this.looks !== number;
    try {
      await this.find(notebook, wanted, left);
    } catch (error) {
      if (!left()) this.offer(trans.__("The panel could not be shown: %1", error instanceof Error ? error.message : String(error)));
    }
  }

  /** left: whether this was overtaken meanwhile, by another look or the end of the notebook. */
  private async find(notebook: NotebookPanel, wanted: string, left: () => boolean): Promise<void> {
    const { trans, choose } = this.options;
    const { context, sessionContext } = notebook;
    await context.ready;
    await sessionContext.ready;
    const language = (await sessionContext.session?.kernel?.spec)?.language;
    if (left()) return;
    if (language !== undefined && language !== "python") {
      this.offer(trans.__("%1 has a kernel for %2. A bench is in a kernel for Python.", context.path, language));
      return;
    }
    const model = await findPanel(notebook, wanted, choose);
    if (left()) return;
    if (model === null) this.offer(trans.__("The kernel of %1 has no bench. Execute the cell that makes one, then show its panel.", context.path));
    else await this.put(notebook, model, left);
  }

  private async put(notebook: NotebookPanel, model: string, left: () => boolean): Promise<void> {
    const shows = await this.showsWidgets(notebook, left);
    if (left()) return;
    if (!shows) {
      this.message.say(this.options.trans.__("This JupyterLab cannot show widgets. Install ipywidgets beside it (pip install ipywidgets), and load the page again."));
      return;
    }
    this.clear();
    const { rendermime } = notebook.content;
    const renderer = rendermime.createRenderer(WIDGET) as IRenderMime.IRenderer & Panel;
    this.renderer = renderer;
    this.addWidget(renderer);
    this.place = { ...this.place, model };
    this.movedSignal.emit();
    this.observer.observe(renderer.node, { childList: true });
    const view = { version_major: 2, version_minor: 0, model_id: model };
    await renderer.renderModel(rendermime.createModel({ data: { [WIDGET]: view }, trusted: true }));
    this.followView();
  }

  /** Wait until a notebook can show widgets; false: it cannot. ipywidgets puts its own factory there when it has the kernel. */
  private async showsWidgets(notebook: NotebookPanel, left: () => boolean): Promise<boolean> {
    const end = Date.now() + MANAGER_MS;
    while (!left() && Date.now() < end) {
      const factory = notebook.content.rendermime.getFactory(WIDGET);
      if (factory !== undefined && factory !== this.options.rendermime.getFactory(WIDGET)) return true;
      await new Promise((done) => setTimeout(done, LOOK_MS));
    }
    return false;
  }

  /** The view of the panel may come late, when the widgets of a page that was loaded again are known, and goes when the bench is closed. */
  private followView(): void {
    const view = this.renderer?.widgets[0];
    if (view === undefined) return;
    this.message.hide();
    this.observer.disconnect();
    view.disposed.connect(() => {
      if (!this.isDisposed && view === this.view) this.offer(this.options.trans.__("The bench of this panel was closed, or its cell was executed again."));
    });
    this.view = view;
  }

  private follow(notebook: NotebookPanel): void {
    if (this.notebook === notebook) return;
    this.notebook = notebook;
    notebook.context.pathChanged.connect((_, path) => {
      this.place = { ...this.place, path };
      this.movedSignal.emit();
    }, this);
    notebook.sessionContext.statusChanged.connect((_, status) => {
      if (ENDED.includes(status)) this.kernelEnded();
    }, this);
    notebook.sessionContext.kernelChanged.connect((_, { oldValue }) => {
      if (oldValue !== null) this.kernelEnded();
    }, this);
    notebook.disposed.connect(() => {
      this.notebook = null;
      this.clear();
      if (!this.isDisposed) void this.look(this.place.model);
    }, this);
  }

  private kernelEnded(): void {
    this.looks += 1;
    this.offer(this.options.trans.__("The kernel of %1 has ended or was restarted, and this panel with it. Execute the cell that makes the bench, then show its panel.", this.place.path));
  }

  private added(_: INotebookTracker, notebook: NotebookPanel): void {
    if (this.notebook === null && notebook.context.path === this.place.path) void this.look(this.place.model);
  }

  private offer(text: string): void {
    this.message.say(text, this.options.trans.__("Show the panel"), () => void this.look(""));
  }

  private clear(): void {
    this.observer.disconnect();
    this.view = null;
    this.renderer?.dispose();
    this.renderer = null;
  }
}

/** A sentence above the panel, and what can be done. */
class Message extends Widget {
  private readonly text = el("span");
  private readonly button = el("button", "jp-Button jp-mod-styled jp-mod-accept", "", { type: "button" });
  private act = () => {};

  constructor() {
    super({ node: el("div", "wb-pane-message", "", { role: "status" }) });
    this.node.append(this.text, this.button);
    this.button.addEventListener("click", () => this.act());
  }

  say(text: string, action = "", act = () => {}): void {
    this.text.textContent = text;
    this.button.textContent = action;
    this.button.hidden = !action;
    this.act = act;
    this.show();
  }
}
