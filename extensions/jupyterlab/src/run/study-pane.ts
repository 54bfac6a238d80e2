// The pane of a study: the view that the notebook has, drawn by the server from the study's folder. It needs no kernel.

import type { Message } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";
import { el } from "../../../live/src/shared/dom";
import { runsIcon } from "../icon";
import type { StudyRef } from "../messages";
import { RunCanvas } from "./canvas";
import type { RunPaneOptions } from "./pane";

export class StudyPane extends Widget {
  private readonly canvas: RunCanvas;
  private readonly notice = el("div", "wb-pane-message", "", { role: "status" });

  constructor(readonly ref: StudyRef, private readonly options: RunPaneOptions) {
    super();
    const { client, looks, words } = options;
    this.addClass("wb-pane");
    Object.assign(this.title, { icon: runsIcon, closable: true, label: ref.study, caption: words.study(ref.study) });
    this.canvas = new RunCanvas(client.api, looks, words);
    this.canvas.onConnected = (connected) => void this.connection(connected);
    this.notice.hidden = true;
    const content = el("div", "wb-pane-content");
    content.append(this.notice, this.canvas.root);
    this.node.append(content);
    this.node.tabIndex = -1;
  }

  override dispose(): void {
    this.canvas.dispose();
    super.dispose();
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    if (!this.node.contains(document.activeElement)) this.node.focus();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.isVisible) this.canvas.showStudy(this.ref);
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.canvas.showStudy(this.ref);
  }

  /** A pane that is not seen is not drawn. */
  protected override onBeforeHide(message: Message): void {
    super.onBeforeHide(message);
    this.canvas.dispose();
  }

  /** A websocket ends in the same way for a deleted study and for a lost connection: the list of studies tells them apart. */
  private async connection(connected: boolean): Promise<void> {
    const [text, gone] = connected ? ["", false] : await this.why();
    if (this.isDisposed) return;
    this.notice.hidden = !text;
    this.notice.textContent = text;
    if (gone) this.canvas.show([]);
  }

  /** Why nothing comes, and whether nothing will. */
  private async why(): Promise<[text: string, gone: boolean]> {
    const { client, words } = this.options;
    const { root, study } = this.ref;
    try {
      const { studies, more } = await client.api.studies();
      const row = studies.find((one) => one.root === root && one.study === study);
      if (row?.error) return [words.missing(study, row.error), true];
      if (row === undefined && more === 0) return [words.missing(study, words.noStudy), true];
    } catch {
      // the server does not answer
    }
    return [words.lost, false];
  }
}
