// The plots of one run, of a comparison or of a study: the canvas of the notebook, loaded from the server and fed over a websocket.

import { el } from "../../../live/src/shared/dom";
import type { Api } from "../api";
import { Connection } from "../connection";
import type { Ref, StudyRef } from "../messages";
import { CanvasModel, canvasPath, type Looks, studyPath, type Subject } from "./canvas-model";
import { liveBundle } from "./live-bundle";
import type { PaneTexts } from "./texts";

interface Shown {
  path: string;
  subject: Subject;
}

export class RunCanvas {
  readonly root = el("section", "wb-pane-canvas");
  /** Called when the connection opens, and each time it is lost or could not be opened. */
  onConnected: (connected: boolean) => void = () => {};
  private readonly notice = el("div", "wb-pane-message", "", { role: "status" });
  private shown: Shown | null = null;
  private model: CanvasModel | null = null;
  private clean = () => {};

  constructor(private readonly api: Api, private readonly looks: Promise<Looks>, private readonly texts: PaneTexts) {
    this.root.setAttribute("aria-label", texts.plots);
    this.root.append(this.notice);
    this.root.hidden = true;
  }

  /** Show the plots of these runs; of none: nothing. Those that are shown already stay as they are. */
  show(refs: Ref[]): void {
    this.draw(refs.length ? canvasPath(refs) : "", "bench");
  }

  /** Show a study. */
  showStudy(ref: StudyRef): void {
    this.draw(studyPath(ref), "study");
  }

  private draw(path: string, subject: Subject): void {
    if (path === (this.shown?.path ?? "")) return;
    this.dispose();
    this.root.hidden = !path;
    if (!path) return;
    this.shown = { path, subject };
    void this.load(this.shown);
  }

  /** Try now to open the connection that was lost. */
  retry(): void {
    this.model?.retry();
  }

  dispose(): void {
    this.shown = null;
    this.close();
  }

  private async load(shown: Shown): Promise<void> {
    this.say(this.texts.loading);
    try {
      const [bundle, looks] = await Promise.all([liveBundle(this.api), this.looks]);
      if (this.shown !== shown) return;
      const { api } = this;
      const model = (this.model = new CanvasModel((hears) => new Connection(() => api.socketUrl(shown.path), hears, (url) => new api.settings.WebSocket(url)), looks, shown.subject));
      model.onConnected = (connected) => this.onConnected(connected);
      model.onRefused = (why) => this.say(why);
      const canvas = bundle.default();
      canvas.initialize({ model });
      this.clean = canvas.render({ model, el: this.root });
      this.say("");
    } catch (error) {
      if (this.shown !== shown) return;
      this.close();
      this.say(this.texts.noCanvas(error instanceof Error ? error.message : String(error)), () => void this.load(shown));
    }
  }

  private close(): void {
    this.clean();
    this.clean = () => {};
    this.root.replaceChildren(this.notice);
    this.model?.dispose();
    this.model = null;
  }

  private say(text: string, again?: () => void): void {
    this.notice.hidden = !text;
    this.notice.textContent = text;
    if (again === undefined) return;
    const button = el("button", "wb-pane-button", this.texts.retry, { type: "button" });
    button.addEventListener("click", again);
    this.notice.append(button);
  }
}
