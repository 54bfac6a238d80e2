// The plots of one run or of a comparison: the canvas of the notebook, loaded from the server and fed over a websocket.

import { el } from "../../../live/src/shared/dom";
import type { Api } from "../api";
import { Connection } from "../connection";
import type { Ref } from "../messages";
import { CanvasModel, canvasPath, type Looks } from "./canvas-model";
import { liveBundle } from "./live-bundle";
import type { PaneTexts } from "./texts";

export class RunCanvas {
  readonly root = el("section", "wb-pane-canvas");
  /** Called when the connection opens and when it is lost. */
  onConnected: (connected: boolean) => void = () => {};
  private readonly notice = el("div", "wb-pane-message", "", { role: "status" });
  private model: CanvasModel | null = null;
  private clean = () => {};
  private gone = false;

  constructor(private readonly api: Api, private readonly refs: Ref[], private readonly looks: Promise<Looks>, private readonly texts: PaneTexts) {
    this.root.setAttribute("aria-label", texts.plots);
    this.root.append(this.notice);
    void this.show();
  }

  dispose(): void {
    this.gone = true;
    this.clean();
    this.model?.dispose();
  }

  private async show(): Promise<void> {
    this.say(this.texts.loading);
    try {
      const [bundle, looks] = await Promise.all([liveBundle(this.api), this.looks]);
      if (this.gone) return;
      const { api } = this;
      const model = (this.model = new CanvasModel((hears) => new Connection(() => api.socketUrl(canvasPath(this.refs)), hears, (url) => new api.settings.WebSocket(url)), looks));
      model.onConnected = (connected) => this.onConnected(connected);
      model.onRefused = (why) => this.say(why);
      const canvas = bundle.default();
      canvas.initialize({ model });
      this.clean = canvas.render({ model, el: this.root });
      this.say("");
    } catch (error) {
      this.say(this.texts.noCanvas(error instanceof Error ? error.message : String(error)), true);
    }
  }

  private say(text: string, again = false): void {
    this.notice.hidden = !text;
    this.notice.textContent = text;
    if (!again) return;
    const button = el("button", "wb-pane-button", this.texts.retry, { type: "button" });
    button.addEventListener("click", () => void this.show());
    this.notice.append(button);
  }
}
