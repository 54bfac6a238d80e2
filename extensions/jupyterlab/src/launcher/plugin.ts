// A new notebook from a template of the server: cards in the launcher, and entries of the command palette.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette, showErrorMessage } from "@jupyterlab/apputils";
import { IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import { ILauncher } from "@jupyterlab/launcher";
import type { Contents } from "@jupyterlab/services";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import { IClient, type Client } from "../client";
import { runsIcon } from "../icon";
import { CATEGORY, DOMAIN } from "../texts";

const NEW = "tuning-workbench:new-notebook";

export const launcher: JupyterFrontEndPlugin<void> = {
  id: "tuning-workbench:launcher",
  description: "New notebooks from templates.",
  autoStart: true,
  requires: [IClient],
  optional: [ILauncher, ICommandPalette, IDefaultFileBrowser, ITranslator],
  activate: (
    app: JupyterFrontEnd, client: Client, cards: ILauncher | null, palette: ICommandPalette | null, browser: IDefaultFileBrowser | null, translator: ITranslator | null,
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const { commands, serviceManager } = app;
    const { api } = client;
    commands.addCommand(NEW, {
      label: ({ title, isPalette }) => (isPalette ? trans.__("New notebook: %1", String(title)) : String(title ?? "")),
      caption: ({ description }) => String(description ?? ""),
      icon: ({ isPalette }) => (isPalette ? undefined : runsIcon),
      execute: async ({ template, cwd }) => {
        try {
          const content = await api.template(String(template));
          const path = await save(serviceManager.contents, String(cwd ?? browser?.model.path ?? ""), content);
          return await commands.execute("docmanager:open", { path, factory: "Notebook", ...(await kernelFor(app)) });
        } catch (error) {
          await showErrorMessage(trans.__("No notebook was made from the template"), error as Error);
          return undefined;
        }
      },
    });
    if (cards === null && palette === null) return;
    void app.restored.then(async () => {
      const templates = await api.templates();
      templates.forEach(({ name, title, description }, rank) => {
        const args = { template: name, title, description };
        cards?.add({ command: NEW, args, category: CATEGORY, rank });
        palette?.addItem({ command: NEW, args: { ...args, isPalette: true }, category: CATEGORY });
      });
    }).catch((error: unknown) => console.warn(trans.__("The templates of Tuning Workbench cannot be read: %1", String(error))));
  },
};

/** Save a notebook under a new name in a folder. */
async function save(contents: Contents.IManager, folder: string, content: Record<string, unknown>): Promise<string> {
  const { path } = await contents.newUntitled({ path: folder, type: "notebook" });
  await contents.save(path, { type: "notebook", format: "json", content });
  return path;
}

/** The one kernel for Python; where there are several, JupyterLab asks which. */
async function kernelFor(app: JupyterFrontEnd): Promise<{ kernel?: { name: string } }> {
  const { kernelspecs } = app.serviceManager;
  await kernelspecs.ready;
  const python = Object.values(kernelspecs.specs?.kernelspecs ?? {}).filter((spec) => spec?.language === "python");
  return python.length === 1 ? { kernel: { name: python[0]!.name } } : {};
}
