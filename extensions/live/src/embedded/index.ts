// The anywidget module of a whole panel, its ipywidgets included, for front ends that show anywidgets alone (marimo).

import "@lumino/widgets/style/index.css";
import "@jupyter-widgets/base/css/index.css";
import "@jupyter-widgets/controls/css/labvariables.css";
import "@jupyter-widgets/controls/css/widgets-base.css";
import "./embedded.css";
import type { AnyModel } from "../data/anywidget";
import { el as make } from "../shared/dom";
import { isDark, watchTheme } from "../shared/theme";
import { texts } from "../texts";
import { EmbeddedManager } from "./manager";

export default {
  async render({ model, el, signal }: { model: AnyModel; el: HTMLElement; signal?: AbortSignal }): Promise<() => void> {
    const page = make("div", "wb-embedded");
    el.append(page);
    const follow = () => page.setAttribute("data-jp-theme-light", String(!isDark(page)));
    follow();
    const forgetTheme = watchTheme(follow);
    let remove = () => {};
    try {
      remove = await new EmbeddedManager(model).show(model.get("panel") as string, page);
    } catch (error) {
      forgetTheme();
      throw error;
    }
    return () => {
      forgetTheme();
      remove();
      // marimo ends a panel whose widgets Python has closed, and leaves its place in the page empty; the style sheet is gone, too.
      if (signal?.aborted) page.textContent = texts.embedded.closed;
      else page.remove();
    };
  },
};
