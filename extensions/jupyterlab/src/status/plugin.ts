// The status bar's item, and the notification when a run ends.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { IStatusBar } from "@jupyterlab/statusbar";
import { ITranslator } from "@jupyterlab/translation";
import { Signal } from "@lumino/signaling";
import { IClient } from "../client";
import type { Client } from "../client";
import type { Ref } from "../messages";
import { ids } from "../runs/commands";
import { CATEGORY, DOMAIN, textsOf } from "../texts";
import { Endings } from "./endings";
import { StatusItem } from "./item";
import { canAsk, EndNotifications, isAway } from "./notify";
import type { When } from "./notify";

const ID = "tuning-workbench:status";
const PERMIT = "tuning-workbench:permit-notifications";

export const status: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: "The run that trains now in the status bar, and a notification when a run ends.",
  autoStart: true,
  requires: [IClient, ITranslator],
  optional: [IStatusBar, ISettingRegistry, ICommandPalette],
  activate: (app: JupyterFrontEnd, client: Client, translator: ITranslator, bar: IStatusBar | null, registry: ISettingRegistry | null, palette: ICommandPalette | null) => {
    const texts = textsOf(translator.load(DOMAIN));
    const open = ({ root, run }: Ref) => void (app.commands.hasCommand(ids.open) && app.commands.execute(ids.open, { root, run }));
    const item = new StatusItem(client, texts, open);
    const changed = new Signal<StatusItem, void>(item);
    for (const signal of [client.events, client.linked]) signal.connect(() => changed.emit());
    bar?.registerStatusItem(ID, { item, align: "left", rank: 20, isActive: () => item.isActive, activeStateChanged: changed });

    let when: When = "away";
    void registry?.load(ID).then((settings) => {
      const read = () => void (when = settings.get("notify").composite as When);
      settings.changed.connect(read);
      read();
    });
    const permit = () => void app.commands.execute(PERMIT);
    const list = () => void (app.commands.hasCommand(ids.show) && app.commands.execute(ids.show));
    const notifications = new EndNotifications(texts, { open, list, permit });
    const endings = new Endings(isAway, (rows, more) => notifications.show(rows, more));
    window.addEventListener("focus", () => endings.seen());
    client.events.connect((_, event) => {
      if (event.type === "ended" && (when === "always" || (when === "away" && isAway()))) endings.add(event.row);
    });
    app.commands.addCommand(PERMIT, {
      label: texts.commands.permit,
      isEnabled: canAsk,
      execute: () => Notification.requestPermission(), // browsers ask only while a person presses something
    });
    palette?.addItem({ command: PERMIT, category: CATEGORY });
  },
};
