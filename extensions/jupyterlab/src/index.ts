// The plugins of the extension, each in a file of its own.

import type { JupyterFrontEndPlugin } from "@jupyterlab/application";
import { client } from "./client";
import { runs } from "./runs/plugin";
import { status } from "./status/plugin";

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  client,
  runs,
  status,
];
export default plugins;
