// What a run has for the current notebook: a new cell that continues it, repeats it or sets its settings, and its script in an editor.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, InputDialog, Notification } from "@jupyterlab/apputils";
import { PathExt } from "@jupyterlab/coreutils";
import { INotebookTracker, type NotebookPanel } from "@jupyterlab/notebook";
import { ITranslator, nullTranslator, type TranslationBundle } from "@jupyterlab/translation";
import type { Api } from "../api";
import { IClient, type Client } from "../client";
import type { Ref } from "../messages";
import { ids } from "../runs/commands";
import { IRunsInUse, type RunsInUse } from "../runs/in-use";
import { addRunCommand, ONE } from "../runs/run-command";
import { CATEGORY, DOMAIN, textsOf } from "../texts";
import { benchesOf, exportBy, forBench, type Bench } from "./benches";
import { within } from "./kernel";

/** So long a kernel that executes a cell has to end it. */
const BUSY_MS = 1500;
/** So long a kernel that does nothing has to answer. */
const IDLE_MS = 20_000;

export const notebook: JupyterFrontEndPlugin<void> = {
  id: "tuning-workbench:notebook",
  description: "Cells and scripts of a run in the current notebook.",
  autoStart: true,
  requires: [IClient, IRunsInUse, INotebookTracker],
  optional: [ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd, client: Client, inUse: RunsInUse, tracker: INotebookTracker, palette: ICommandPalette | null, translator: ITranslator | null,
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const texts = textsOf(trans);
    const notebooks = new Notebooks(app, tracker, client.api, trans);
    const add = (id: string, label: string, caption: string, work: (run: Ref) => Promise<void>) => {
      addRunCommand(app.commands, inUse, texts, { id, label, caption, count: ONE, work: ([run]) => work(run!) });
      palette?.addItem({ command: id, category: CATEGORY });
    };
    const { commands: words } = texts;
    add(ids.continue, words.continue, trans.__("Insert the line that continues this run into the current notebook"), (run) => notebooks.continue(run));
    add(ids.rerun, words.rerun, trans.__("Insert the lines that repeat this run, from what it started from, into the current notebook"), (run) => notebooks.rerun(run));
    add(ids.settings, words.settings, trans.__("Insert the line that sets the settings of this run into the current notebook"), (run) => notebooks.settings(run));
    add(ids.export, words.export, trans.__("Write the script of this run by the bench of the current notebook, and open it"), (run) => notebooks.export(run));
  },
};

class Notebooks {
  constructor(
    private readonly app: JupyterFrontEnd,
    private readonly tracker: INotebookTracker,
    private readonly api: Api,
    private readonly trans: TranslationBundle,
  ) {}

  /** Insert the line that continues the run, for a bench that keeps its runs where the run is: its id says nothing to another. */
  async continue(ref: Ref): Promise<void> {
    const panel = this.current();
    const { code } = await this.api.run(ref);
    if (!code.continue) throw new Error(this.trans.__("%1 cannot be continued: only a fit that has ended and has a checkpoint can.", ref.run));
    const bench = await this.benchOf(panel, ref);
    if (bench !== null) await this.insert(panel, forBench(code.continue, bench.name));
  }

  /** Insert the lines that repeat the run. They need no bench. */
  async rerun(ref: Ref): Promise<void> {
    const panel = this.current();
    const { code, why_no_rerun } = await this.api.run(ref);
    if (!code.rerun) throw new Error(this.trans.__("%1 cannot be repeated: %2.", ref.run, why_no_rerun));
    await this.insert(panel, code.rerun);
  }

  /** Insert the line that sets the settings of the run. They suit each bench: which one is meant, the person reads and changes. */
  async settings(ref: Ref): Promise<void> {
    const panel = this.current();
    const { code } = await this.api.run(ref);
    if (!code.settings) throw new Error(this.trans.__("All settings of %1 are the defaults. There is nothing to set.", ref.run));
    const all = await this.benches(panel).catch(() => []); // also without a kernel, or while it is busy
    const own = all.filter(({ root }) => root === ref.root);
    const bench = await this.choose(own.length > 0 ? own : all);
    if (bench !== null) await this.insert(panel, forBench(code.settings, bench?.name ?? "bench"));
  }

  /** Write the script of the run by a bench of the notebook's kernel, and open it. */
  async export(ref: Ref): Promise<void> {
    const { trans } = this;
    const { run } = ref;
    const panel = this.current();
    const bench = await this.benchOf(panel, ref);
    const kernel = kernelOf(panel);
    if (bench === null || !kernel) return;
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

  /** Insert a cell below the active one. */
  private async insert(panel: NotebookPanel, source: string): Promise<void> {
    const { content } = panel;
    const index = content.activeCellIndex + 1;
    content.model?.sharedModel.insertCell(index, { cell_type: "code", source });
    content.activeCellIndex = index;
    this.app.shell.activateById(panel.id);
    await content.scrollToItem(index);
  }

  /** The bench of a notebook that keeps its runs where this one is; null: the person chose none. */
  private async benchOf(panel: NotebookPanel, { root, run }: Ref): Promise<Bench | null> {
    const bench = await this.choose((await this.benches(panel)).filter((one) => one.root === root));
    if (bench === undefined) {
      throw new Error(this.trans.__("No bench in the kernel of %1 keeps its runs where %2 is. Execute the cell that makes the bench, or open its notebook.", panel.title.label, run));
    }
    return bench;
  }

  /** All benches of a notebook's kernel. */
  private async benches(panel: NotebookPanel): Promise<Bench[]> {
    const kernel = kernelOf(panel);
    if (!kernel) throw new Error(this.trans.__("%1 has no kernel. Start one, and execute the cell that makes the bench.", panel.title.label));
    const found = await within(benchesOf(kernel), kernel.status === "busy" ? BUSY_MS : IDLE_MS);
    if (found === undefined) throw new Error(this.trans.__("The kernel of %1 executes a cell. Try again when the cell has ended.", panel.title.label));
    return found;
  }

  /** The one bench, or the one that the person chooses; null: none is wanted; undefined: there is none. */
  private async choose(benches: Bench[]): Promise<Bench | null | undefined> {
    if (benches.length < 2) return benches[0];
    const asked = await InputDialog.getItem({ title: this.trans.__("For which bench?"), items: benches.map(({ name }) => name) });
    return asked.button.accept ? benches.find(({ name }) => name === asked.value) : null;
  }
}

function kernelOf(panel: NotebookPanel) {
  return panel.sessionContext.session?.kernel;
}
