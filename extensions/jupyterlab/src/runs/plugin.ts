// The Runs panel in the left side bar, and the commands on runs.

import { ILayoutRestorer } from "@jupyterlab/application";
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { ITranslator } from "@jupyterlab/translation";
import { IClient } from "../client";
import type { Client } from "../client";
import { CATEGORY, DOMAIN, textsOf } from "../texts";
import { addCommands, ids } from "./commands";
import { IRunsInUse, RunsInUse } from "./in-use";
import { RunList } from "./list";
import { RunsPanel } from "./panel";

export const runs: JupyterFrontEndPlugin<RunsInUse> = {
  id: "tuning-workbench:runs",
  description: "Training runs in the left side bar.",
  autoStart: true,
  provides: IRunsInUse,
  requires: [IClient, ITranslator],
  optional: [ILayoutRestorer, ICommandPalette],
  activate: (app: JupyterFrontEnd, client: Client, translator: ITranslator, restorer: ILayoutRestorer | null, palette: ICommandPalette | null) => {
    const texts = textsOf(translator.load(DOMAIN));
    const list = new RunList((query) => client.api.runs(query));
    const inUse = new RunsInUse();
    const deletions = addCommands(app.commands, client, list, inUse, texts);
    const panel = new RunsPanel(client, list, app.commands, deletions, texts);
    inUse.add(panel, () => list.chosen);
    app.shell.add(panel, "left", { rank: 450 });
    restorer?.add(panel, panel.id);
    app.commands.addCommand(ids.show, { label: texts.commands.show, execute: () => app.shell.activateById(panel.id) });
    const own = [ids.show, ids.stop, ids.pause, ids.resume, ids.validate, ids.checkpoint, ids.annotate, ids.pin, ids.unpin, ids.copyId, ids.delete];
    for (const command of own) palette?.addItem({ command, category: CATEGORY });
    return inUse;
  },
};
