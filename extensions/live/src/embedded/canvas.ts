// The live canvas within an embedded panel: its module has the front end's own model, as it has everywhere.

import { DOMWidgetModel, DOMWidgetView } from "@jupyter-widgets/base";
import makeCanvas from "../index";
import type { Comm } from "./manager";

export class CanvasModel extends DOMWidgetModel {
  readonly canvas = makeCanvas();
}

export class CanvasView extends DOMWidgetView {
  private clean = () => {};

  override render(): void {
    super.render();
    const { canvas, comm } = this.model as unknown as { canvas: CanvasModel["canvas"]; comm: Comm };
    this.clean = canvas.render({ model: comm.remote, el: this.el });
  }

  override remove(): any {
    this.clean();
    return super.remove();
  }
}
