// Says that a run has ended: in JupyterLab, and by the browser where its tab is not looked at and the person has allowed it.

import { Notification as LabNotification } from "@jupyterlab/apputils";
import type { Ref, Row } from "../messages";
import { nameOf, statusOf } from "../runs/words";
import type { Texts } from "../texts";

/** When to notify: always, only while the page is not looked at, or never. */
export type When = "always" | "away" | "never";

export interface Notifier {
  open(ref: Ref): void;
  permit(): void;
}

/** Whether the person looks at another tab or window. */
export function isAway(): boolean {
  return document.hidden || !document.hasFocus();
}

/** Whether browsers' notifications are there, and not yet allowed or refused. */
export function canAsk(): boolean {
  return "Notification" in window && Notification.permission === "default";
}

export function notifyEnded(row: Row, when: When, texts: Texts, notifier: Notifier): void {
  const away = isAway();
  if (when === "never" || (when === "away" && !away)) return;
  const failed = row.status === "failed";
  const title = texts.ended(nameOf(row), statusOf(row, texts));
  const facts = failed ? [row.error] : [row.loss && texts.loss(row.loss), row.value && texts.setting(row.metric, row.value), row.time];
  const body = facts.filter(Boolean).join(" · ");
  const ref = { root: row.root, run: row.run };
  const actions = [{ label: texts.commands.open, callback: () => notifier.open(ref) }];
  if (canAsk()) actions.push({ label: texts.commands.permit, callback: () => notifier.permit() });
  LabNotification.emit(body ? `${title}: ${body}` : title, failed ? "error" : "success", { autoClose: away ? false : 5000, actions });
  if (!away || !("Notification" in window) || Notification.permission !== "granted") return;
  const shown = new Notification(title, { body, tag: `tuning-workbench/${ref.root}/${ref.run}` }); // one, from however many tabs
  shown.onclick = () => {
    window.focus();
    notifier.open(ref);
    shown.close();
  };
}
