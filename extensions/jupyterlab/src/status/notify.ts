// Says that runs have ended: in JupyterLab, and by the browser where its tab is not looked at and the person has allowed it.

import { Notification as LabNotification } from "@jupyterlab/apputils";
import type { Ref, Row } from "../messages";
import { nameOf, statusOf } from "../runs/words";
import type { Texts } from "../texts";

/** When to notify: always, only while the page is not looked at, or never. */
export type When = "always" | "away" | "never";

export interface Notifier {
  open(ref: Ref): void;
  /** Show the list of runs. */
  list(): void;
  permit(): void;
}

/** How long JupyterLab shows it while the page is looked at; afterwards it is in the list of notifications. */
const SHOWN_MS = 8000;
/** So many names are in a notification at most. */
const NAMES = 3;
/** One notification of the browser from however many tabs, the newest. */
const TAG = "tuning-workbench/ended";

/** Whether the person looks at another tab or window. */
export function isAway(): boolean {
  return document.hidden || !document.hasFocus();
}

/** Whether browsers' notifications are there, and not yet allowed or refused. */
export function canAsk(): boolean {
  return "Notification" in window && Notification.permission === "default";
}

/** The title and the line of the notification of these runs. */
export function wordsFor(rows: Row[], texts: Texts): [title: string, body: string] {
  const [row] = rows;
  if (rows.length === 1 && row !== undefined) {
    const facts = row.status === "failed" ? [row.error] : [row.loss && texts.loss(row.loss), row.value && texts.best(row.metric, row.value), row.answer, row.time];
    return [texts.ended(nameOf(row), statusOf(row, texts)), facts.filter(Boolean).join(" · ")];
  }
  const names = rows.map(nameOf).reverse();
  const most = names.slice(0, NAMES);
  const failed = rows.filter(({ status }) => status === "failed").length;
  return [texts.endedMany(rows.length, failed), names.length > NAMES ? texts.andMore(most, names.length - NAMES) : most.join(", ")];
}

export class EndNotifications {
  private id = "";

  constructor(private readonly texts: Texts, private readonly notifier: Notifier) {}

  /** replaces: these runs have those of the last notification, too. */
  show(rows: Row[], replaces: boolean): void {
    const { texts, notifier } = this;
    const [title, body] = wordsFor(rows, texts);
    const [row] = rows;
    const open = () => (rows.length === 1 && row !== undefined ? notifier.open({ root: row.root, run: row.run }) : notifier.list());
    const actions = [{ label: rows.length === 1 ? texts.commands.open : texts.commands.show, callback: open }];
    if (canAsk()) actions.push({ label: texts.commands.permit, callback: () => notifier.permit() });
    const message = body ? `${title}: ${body}` : title;
    const type = rows.some(({ status }) => status === "failed") ? "error" : "success";
    const options = { autoClose: SHOWN_MS, actions };
    if (!replaces || !LabNotification.update({ id: this.id, message, type, ...options })) this.id = LabNotification.emit(message, type, options);
    if (!isAway() || !("Notification" in window) || Notification.permission !== "granted") return;
    const shown = new Notification(title, { body, tag: TAG });
    shown.onclick = () => {
      window.focus();
      open();
      shown.close();
    };
  }
}
