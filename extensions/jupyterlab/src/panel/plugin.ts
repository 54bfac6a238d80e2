// "Show the panel beside the notebook": the panel of a bench out of its cell, in a pane that is there again when the page is loaded again.

import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, InputDialog, MainAreaWidget, WidgetTracker } from "@jupyterlab/apputils";
import { PathExt } from "@jupyterlab/coreutils";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import { runsIcon } from "../icon";
import { CATEGORY, DOMAIN } from "../texts";
import { panelsIn } from "./find";
import { PanelPane, type PaneOptions, type Place } from "./pane";

const SHOW = "tuning-workbench:show-panel";
const LOOK_MS = 300;

export const panel: JupyterFrontEndPlugin<void> = {
  id: "tuning-workbench:panel",
  description: "The live panel of a bench in a pane beside the notebook.",
  autoStart: true,
  requires: [INotebookTracker, IRenderMimeRegistry],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd, tracker: INotebookTracker, rendermime: IRenderMimeRegistry,
    lab: ILabShell | null, restorer: ILayoutRestorer | null, palette: ICommandPalette | null, translator: ITranslator | null,
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const { commands, shell } = app;
    const panes = new WidgetTracker<MainAreaWidget<PanelPane>>({ namespace: "tuning-workbench-panels" });
    const choose = async (names: string[]) => {
      const asked = await InputDialog.getItem({ title: trans.__("Show the panel of which bench?"), items: names });
      return asked.button.accept ? asked.value : null;
    };
    const options: PaneOptions = { tracker, rendermime, trans, choose, openNotebook: (path, { id }) => void commands.execute("docmanager:open", { path, options: { ref: id, mode: "split-left" } }) };

    const open = (place: Place): MainAreaWidget<PanelPane> => {
      const known = panes.find(({ content: { where } }) => where.path === place.path && (!place.model || where.model === place.model));
      if (known) return known;
      const content = new PanelPane(place, options);
      const pane = new MainAreaWidget({ content });
      const name = () => {
        const { path } = content.where;
        pane.title.label = trans.__("Panel: %1", PathExt.basename(path));
        pane.title.caption = trans.__("The panel of the bench in %1", path);
      };
      name();
      pane.title.icon = runsIcon;
      pane.toolbar.hide(); // it is empty
      content.moved.connect(() => {
        name();
        void panes.save(pane);
      });
      void panes.add(pane);
      return pane;
    };
    commands.addCommand(SHOW, {
      label: trans.__("Show the panel beside the notebook"),
      caption: trans.__("Open the live panel of this notebook's bench in a pane beside it"),
      icon: runsIcon,
      isEnabled: () => tracker.currentWidget !== null,
      isVisible: ({ where }) => where !== "toolbar" || seen.has(tracker.currentWidget),
      execute: ({ path, model, where }) => {
        const notebook = tracker.currentWidget;
        // JupyterLab keeps the last right click, however long ago it was: only the menu that it opened asks for it.
        const clicked = where === "context" ? app.contextMenuHitTest((node) => node.classList.contains("jp-Cell")) : undefined;
        const place = typeof path === "string" ? { path, model: String(model ?? "") } : placeIn(notebook, clicked);
        if (place === null) return undefined;
        const pane = open(place);
        if (!pane.isAttached) shell.add(pane, lab ? "main" : "right", notebook === null ? {} : { ref: notebook.id, mode: "split-right" });
        if (typeof path !== "string") shell.activateById(pane.id);
        return pane;
      },
    });
    const seen = new Seen(tracker, () => commands.notifyCommandChanged(SHOW));
    palette?.addItem({ command: SHOW, category: CATEGORY });
    void restorer?.restore(panes, { command: SHOW, args: ({ content }) => ({ ...content.where }), name: ({ content }) => `${content.where.path} ${content.where.model}` });
  },
};

/** The notebook, and the panel of the cell that was clicked, of the active one, or the last one. */
function placeIn(notebook: NotebookPanel | null, clicked: HTMLElement | undefined): Place | null {
  if (notebook === null) return null;
  const from = notebook.content.widgets.findIndex(({ node }) => node === clicked);
  return { path: notebook.context.path, model: panelsIn(notebook, from < 0 ? undefined : from)[0] ?? "" };
}

/** Knows whether the current notebook shows the panel of a bench: its toolbar has the button then. */
class Seen {
  private found = false;
  private timer = 0;
  private notebook: NotebookPanel | null = null;
  private lookedAt: NotebookPanel | null = null;

  constructor(private readonly tracker: INotebookTracker, private readonly changed: () => void) {
    tracker.currentChanged.connect(() => this.follow());
    this.follow();
  }

  has(notebook: NotebookPanel | null): boolean {
    return notebook !== null && notebook === this.notebook && this.found;
  }

  private follow(): void {
    this.notebook?.content.modelContentChanged.disconnect(this.soon, this);
    this.notebook = this.tracker.currentWidget;
    this.notebook?.content.modelContentChanged.connect(this.soon, this);
    this.look();
  }

  /** Outputs may come many times a second. */
  private soon(): void {
    this.timer ||= window.setTimeout(() => this.look(), LOOK_MS);
  }

  private look(): void {
    clearTimeout(this.timer);
    this.timer = 0;
    const { notebook } = this;
    const found = notebook !== null && !notebook.isDisposed && panelsIn(notebook).length > 0;
    if (found === this.found && notebook === this.lookedAt) return;
    this.found = found;
    this.lookedAt = notebook;
    this.changed();
  }
}
