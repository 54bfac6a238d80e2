// The anywidget module: one store for a model, one view for each place it is shown.

import "uplot/dist/uPlot.min.css";
import "./shared/shared.css";
import "./plot/plot.css";
import "./stage/stage.css";
import "./status/status.css";
import "./training/training.css";
import "./gradients/gradients.css";
import "./controls/controls.css";
import "./samples/samples.css";
import "./runs/runs.css";
import "./lr-finder/lr-finder.css";
import "./batch-size/batch-size.css";
import "./study/study.css";
import "./still.css";
import type { AnyModel } from "./data/anywidget";
import { Store } from "./data/store";
import { texts } from "./texts";
import { showStudy } from "./study/show";
import { show } from "./view";

export { showStill } from "./still";

export default () => {
  let store: Store | null = null;
  return {
    initialize({ model }: { model: AnyModel }): void {
      store = new Store(model);
    },
    render({ model, el, signal }: { model: AnyModel; el: HTMLElement; signal?: AbortSignal }): () => void {
      store ??= new Store(model);
      const remove = model.get("subject") === "study" ? showStudy(store, el) : show(store, el);
      return () => {
        remove();
        // marimo ends a panel whose model Python has closed, and leaves its place in the page empty.
        if (signal?.aborted) el.textContent = texts.embedded.closed;
      };
    },
  };
};
