// What a run has for the current notebook: the line that continues it or sets its settings as a new cell, and its script in an editor.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, InputDialog, MainAreaWidget, Notification, showErrorMessage } from "@jupyterlab/apputils";
import { PathExt } from "@jupyterlab/coreutils";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { ITranslator, nullTranslator, type TranslationBundle } from "@jupyterlab/translation";
import type { ReadonlyPartialJSONObject } from "@lumino/coreutils";
import type { Api } from "../api";
import { IClient, type Client } from "../client";
import type { Ref } from "../messages";
import { RunPane } from "../run/pane";
import { ids } from "../runs/commands";
import { CATEGORY, DOMAIN } from "../texts";
import { benchesOf, exportBy, forBench, type Bench } from "./benches";
import { within } from "./kernel";

const KERNEL_MS = 1500;

export const notebook: JupyterFrontEndPlugin<void> = {
  id: "tuning-workbench:notebook",
  description: "Cells and scripts of a run in the current notebook.",
  autoStart: true,
  requires: [IClient, INotebookTracker],
  optional: [ICommandPalette, ITranslator],
  activate: (app: JupyterFrontEnd, client: Client, tracker: INotebookTracker, palette: ICommandPalette | null, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const notebooks = new Notebooks(app, tracker, client.api, trans);
    const add = (id: string, label: string, caption: string, carryOut: (run: Ref) => Promise<void>) => {
      app.commands.addCommand(id, {
        label,
        caption,
        isEnabled: (args) => refOf(app, args) !== null,
        execute: async (args) => {
          try {
            await carryOut(refOf(app, args)!);
          } catch (error) {
            await showErrorMessage(label, error as Error);
          }
        },
      });
      palette?.addItem({ command: id, category: CATEGORY });
    };
    add(ids.continue, trans.__("Continue in the notebook"), trans.__("Insert the line that continues this run into the current notebook"), (run) => notebooks.insert(run, "continue"));
    add(ids.settings, trans.__("Insert its settings as a cell"), trans.__("Insert the line that sets the settings of this run into the current notebook"), (run) => notebooks.insert(run, "settings"));
    add(ids.export, trans.__("Export as a script…"), trans.__("Write the script of this run by the bench of the current notebook, and open it"), (run) => notebooks.export(run));
  },
};

/** The run that a command is for: that of its arguments, or that of the pane in use. */
function refOf(app: JupyterFrontEnd, { root, run }: ReadonlyPartialJSONObject): Ref | null {
  if (typeof root === "string" && typeof run === "string") return { root, run };
  const pane = app.shell.currentWidget;
  return pane instanceof MainAreaWidget && pane.content instanceof RunPane ? pane.content.ref : null;
}

class Notebooks {
  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly tracker: INotebookTracker,
    private readonly api: Api,
    private readonly trans: TranslationBundle,
  ) {}

  /** Insert a line of the run as a cell below the active one. */
  async insert(ref: Ref, which: "continue" | "settings"): Promise<void> {
    const { trans } = this;
    const { root, run } = ref;
    const panel = this.current();
    const { code } = await this.api.run(ref);
    const line = code[which];
    if (!line) throw new Error(trans.__("%1 cannot be continued: only a fit with a checkpoint can.", run));
    const bench = (await this.bench(panel, root)).at(0)?.name ?? "bench";
    const { content } = panel;
    const index = content.activeCellIndex + 1;
    content.model?.sharedModel.insertCell(index, { cell_type: "code", source: forBench(line, bench) });
    content.activeCellIndex = index;
    this.app.shell.activateById(panel.id);
    await content.scrollToItem(index);
  }

  /** Write the script of the run by a bench of the notebook's kernel, and open it. */
  async export({ root, run }: Ref): Promise<void> {
    const { trans } = this;
    const panel = this.current();
    const kernel = kernelOf(panel);
    if (!kernel) throw new Error(trans.__("%1 has no kernel. Start one, and make the bench.", panel.title.label));
    if (kernel.status === "busy") throw new Error(trans.__("The kernel of %1 executes a cell. Export when the cell has ended.", panel.title.label));
    const benches = (await benchesOf(kernel)).filter((bench) => bench.root === root);
    const bench = await this.choose(benches);
    if (bench === null) return;
    if (bench === undefined) throw new Error(trans.__("No bench in the kernel of %1 keeps its runs where %2 is. Execute the cell that makes the bench.", panel.title.label, run));
    const asked = await InputDialog.getText({
      title: trans.__("Export %1", run),
      label: trans.__("File (.py is a script, .ipynb a notebook, .yaml are the settings)"),
      text: `${run}.py`,
      okLabel: trans.__("Export"),
    });
    if (!asked.button.accept || !asked.value) return;
    const written = await exportBy(kernel, bench.name, run, asked.value);
    const path = PathExt.join(PathExt.dirname(this.app.serviceManager.contents.localPath(panel.context.path)), written.beside);
    // What lies outside of the folder of the Jupyter server cannot be opened.
    if (path.startsWith("..")) Notification.success(trans.__("Written: %1", written.path));
    else await this.app.commands.execute("docmanager:open", { path });
  }

  private current(): NotebookPanel {
    const panel = this.tracker.currentWidget;
    if (panel === null) throw new Error(this.trans.__("No notebook is open. Open the one that makes the bench."));
    return panel;
  }

  /** The benches of a notebook, those of this root first; none while its kernel is busy. */
  private async bench(panel: NotebookPanel, root: string): Promise<Bench[]> {
    const kernel = kernelOf(panel);
    const all = (kernel && (await within(benchesOf(kernel).catch(() => []), KERNEL_MS))) || [];
    return [...all.filter((one) => one.root === root), ...all.filter((one) => one.root !== root)];
  }

  /** The one bench, or the one that the user chooses; null: none is wanted; undefined: there is none. */
  private async choose(benches: Bench[]): Promise<Bench | null | undefined> {
    if (benches.length < 2) return benches[0];
    const asked = await InputDialog.getItem({ title: this.trans.__("Export by which bench?"), items: benches.map(({ name }) => name) });
    return asked.button.accept ? benches.find(({ name }) => name === asked.value) : null;
  }
}

function kernelOf(panel: NotebookPanel) {
  return panel.sessionContext.session?.kernel;
}
