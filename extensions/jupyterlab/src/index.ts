// The plugins of the extension, each in a file of its own.

import type { JupyterFrontEndPlugin } from "@jupyterlab/application";
import { client } from "./client";
import { runs } from "./runs/plugin";

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  client,
  runs,
];
export default plugins;
