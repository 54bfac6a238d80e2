// Panes of runs and of comparisons in the main area; a page that is loaded again has them again.

import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { MainAreaWidget, WidgetTracker } from "@jupyterlab/apputils";
import type { DocumentRegistry } from "@jupyterlab/docregistry";
import { IStateDB } from "@jupyterlab/statedb";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import type { ReadonlyJSONObject } from "@lumino/coreutils";
import type { Widget } from "@lumino/widgets";
import { IClient, type Client } from "../client";
import { keyOf, type Ref } from "../messages";
import { ids } from "../runs/commands";
import { DOMAIN, textsOf } from "../texts";
import { keptLooks } from "./looks";
import { ComparePane, RunPane, type RunPaneOptions } from "./pane";
import { paneTextsOf } from "./texts";

export const run: JupyterFrontEndPlugin<void> = {
  id: "tuning-workbench:run",
  description: "The pane of a training run, and of several that are compared.",
  autoStart: true,
  requires: [IClient],
  optional: [ILabShell, ILayoutRestorer, IStateDB, ITranslator],
  activate: (app: JupyterFrontEnd, client: Client, lab: ILabShell | null, restorer: ILayoutRestorer | null, states: IStateDB | null, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const [texts, words] = [textsOf(trans), paneTextsOf(trans)];
    const { commands, shell } = app;
    const options: RunPaneOptions = { client, commands, texts, words, looks: keptLooks(states) };

    const runs = new WidgetTracker<MainAreaWidget<RunPane>>({ namespace: "tuning-workbench-runs" });
    const comparisons = new WidgetTracker<MainAreaWidget<ComparePane>>({ namespace: "tuning-workbench-comparisons" });
    const show = <T extends Widget>(tracker: WidgetTracker<MainAreaWidget<T>>, id: string, make: () => T) => {
      const known = tracker.find((one) => one.id === id);
      const pane = known ?? new MainAreaWidget<T>({ content: make() });
      if (known === undefined) {
        pane.id = id;
        pane.toolbar.hide(); // it is empty: the content has its own
        void tracker.add(pane);
      }
      // Notebook 7 has room for one document in its main area: there a pane stands in the side bar.
      if (!pane.isAttached) shell.add(pane, lab ? "main" : "right", placeFor(runs.currentWidget ?? comparisons.currentWidget, shell.currentWidget));
      shell.activateById(id);
      return pane;
    };
    commands.addCommand(ids.open, {
      label: texts.commands.open,
      execute: (args) => {
        const ref = refOf(args);
        return show(runs, `tuning-workbench-run-${keyOf(ref)}`, () => new RunPane(ref, options));
      },
    });
    commands.addCommand(ids.compare, {
      label: texts.commands.compare,
      execute: (args) => {
        const refs = ((args["runs"] ?? []) as unknown as Ref[]).map(refOf);
        return show(comparisons, `tuning-workbench-compare-${refs.map(keyOf).join("-")}`, () => new ComparePane(refs, options));
      },
    });
    void restorer?.restore(runs, { command: ids.open, args: ({ content }) => ({ ...content.ref }), name: ({ id }) => id });
    void restorer?.restore(comparisons, { command: ids.compare, args: ({ content }) => ({ runs: content.refs as unknown as ReadonlyJSONObject[] }), name: ({ id }) => id });
  },
};

/** With the other panes; the first one beside what is in use, such as the notebook. */
function placeFor(other: Widget | null, current: Widget | null): DocumentRegistry.IOpenOptions {
  if (other?.isAttached) return { ref: other.id, mode: "tab-after" };
  return current === null ? {} : { ref: current.id, mode: "split-right" };
}

function refOf({ root, run }: { root?: unknown; run?: unknown }): Ref {
  return { root: String(root), run: String(run) };
}
