// The plugins of the extension, each in a file of its own.

import type { JupyterFrontEndPlugin } from "@jupyterlab/application";
import { client } from "./client";
import { launcher } from "./launcher/plugin";
import { notebook } from "./notebook/plugin";
import { panel } from "./panel/plugin";
import { run } from "./run/plugin";
import { runs } from "./runs/plugin";
import { status } from "./status/plugin";

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  client,
  runs,
  run,
  panel,
  notebook,
  launcher,
  status,
];
export default plugins;
