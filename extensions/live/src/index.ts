// The anywidget module: one store for a model, one view for each place it is shown.

import "uplot/dist/uPlot.min.css";
import "./live.css";
import "./gradients.css";
import "./panel.css";
import "./runs.css";
import "./search.css";
import type { AnyModel } from "./anywidget";
import { Store } from "./store";
import { show } from "./view";

export default () => {
  let store: Store | null = null;
  return {
    initialize({ model }: { model: AnyModel }): void {
      store = new Store(model);
    },
    render({ model, el }: { model: AnyModel; el: HTMLElement }): () => void {
      store ??= new Store(model);
      return show(store, el);
    },
  };
};
