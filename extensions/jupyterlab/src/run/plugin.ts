// Panes of runs, of comparisons and of studies in the main area; a page that is loaded again has them again.

import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, MainAreaWidget, WidgetTracker } from "@jupyterlab/apputils";
import type { DocumentRegistry } from "@jupyterlab/docregistry";
import { IStateDB } from "@jupyterlab/statedb";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import type { ReadonlyJSONObject, ReadonlyPartialJSONObject } from "@lumino/coreutils";
import { DockPanel, type Widget } from "@lumino/widgets";
import { IClient, type Client } from "../client";
import { keyOf, type Ref, type StudyRef } from "../messages";
import { ids } from "../runs/commands";
import { IRunsInUse, type RunsInUse } from "../runs/in-use";
import { COMPARED } from "../runs/list";
import { addRunCommand, ONE } from "../runs/run-command";
import { CATEGORY, DOMAIN, textsOf } from "../texts";
import { keptLooks } from "./looks";
import { ComparePane, RunPane, type RunPaneOptions } from "./pane";
import { StudyPane } from "./study-pane";
import { paneTextsOf } from "./texts";

export const run: JupyterFrontEndPlugin<void> = {
  id: "tuning-workbench:run",
  description: "The pane of a training run, and of several that are compared.",
  autoStart: true,
  requires: [IClient, IRunsInUse],
  optional: [ILabShell, ILayoutRestorer, IStateDB, ITranslator, ICommandPalette],
  activate: (
    app: JupyterFrontEnd, client: Client, inUse: RunsInUse, lab: ILabShell | null, restorer: ILayoutRestorer | null, states: IStateDB | null,
    translator: ITranslator | null, palette: ICommandPalette | null,
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const [texts, words] = [textsOf(trans), paneTextsOf(trans)];
    const { commands, shell } = app;
    const options: RunPaneOptions = { client, commands, texts, words, looks: keptLooks(states) };

    const runs = new WidgetTracker<MainAreaWidget<RunPane>>({ namespace: "tuning-workbench-runs" });
    const comparisons = new WidgetTracker<MainAreaWidget<ComparePane>>({ namespace: "tuning-workbench-comparisons" });
    const studies = new WidgetTracker<MainAreaWidget<StudyPane>>({ namespace: "tuning-workbench-studies" });
    const show = <T extends Widget>(tracker: WidgetTracker<MainAreaWidget<T>>, id: string, refs: Ref[], activate: boolean, make: () => T) => {
      const known = tracker.find((one) => one.id === id);
      const pane = known ?? new MainAreaWidget<T>({ content: make() });
      if (known === undefined) {
        pane.id = id;
        pane.toolbar.hide(); // it is empty: the content has its own
        inUse.add(pane, () => refs);
        void tracker.add(pane);
      }
      // Notebook 7 has room for one document in its main area: there a pane stands in the side bar.
      if (!pane.isAttached) shell.add(pane, lab ? "main" : "right", { ...placeFor(runs.currentWidget ?? comparisons.currentWidget ?? studies.currentWidget, shell.currentWidget), activate });
      if (!activate && pane.parent instanceof DockPanel) pane.parent.selectWidget(pane); // seen, and the focus stays
      else shell.activateById(id);
      return pane;
    };
    addRunCommand(commands, inUse, texts, {
      id: ids.open,
      label: texts.commands.open,
      count: ONE,
      work: ([ref], { activate }) => show(runs, `tuning-workbench-run-${keyOf(ref!)}`, [ref!], activate, () => new RunPane(ref!, options)),
    });
    addRunCommand(commands, inUse, texts, {
      id: ids.compare,
      label: texts.commands.compare,
      count: [2, COMPARED],
      work: (refs, { activate }) => show(comparisons, `tuning-workbench-compare-${refs.map(keyOf).join("-")}`, refs, activate, () => new ComparePane(refs, options)),
    });
    commands.addCommand(ids.openStudy, {
      label: texts.commands.openStudy,
      isEnabled: (args) => studyIn(args) !== null,
      execute: (args) => {
        const ref = studyIn(args);
        return ref && show(studies, `tuning-workbench-study-${ref.root}/${ref.study}`, [], args["activate"] !== false, () => new StudyPane(ref, options));
      },
    });
    for (const command of [ids.open, ids.compare]) palette?.addItem({ command, category: CATEGORY });
    void restorer?.restore(runs, { command: ids.open, args: ({ content }) => ({ ...content.ref }), name: ({ id }) => id });
    void restorer?.restore(studies, { command: ids.openStudy, args: ({ content }) => ({ ...content.ref }), name: ({ id }) => id });
    void restorer?.restore(comparisons, { command: ids.compare, args: ({ content }) => ({ runs: content.refs as unknown as ReadonlyJSONObject[] }), name: ({ id }) => id });
  },
};

function studyIn({ root, study }: ReadonlyPartialJSONObject): StudyRef | null {
  return typeof root === "string" && typeof study === "string" ? { root, study } : null;
}

/** With the other panes; the first one beside what is in use, such as the notebook. */
function placeFor(other: Widget | null, current: Widget | null): DocumentRegistry.IOpenOptions {
  if (other?.isAttached) return { ref: other.id, mode: "tab-after" };
  return current === null ? {} : { ref: current.id, mode: "split-right" };
}
