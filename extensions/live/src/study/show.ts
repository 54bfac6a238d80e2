// A study alone, in the cell whose last line it is.

import { el, keepKeys } from "../shared/dom";
import { CodeLine } from "../status/code-line";
import { KernelEnded } from "../status/kernel-ended";
import { Notices } from "../controls/notices";
import { DrawScheduler } from "../draw-scheduler";
import type { Store } from "../data/store";
import { followPage, readPalette, watchTheme, type Palette } from "../shared/theme";
import { texts } from "../texts";
import { StudyView } from "./study";

/** Build the view in `host`. Returns what to call when it goes. */
export function showStudy(store: Store, host: HTMLElement): () => void {
  const [panel, root] = [el("div", "wb-panel"), el("div", "wb-live")];
  panel.append(root);
  host.append(panel);
  followPage(root);
  let palette: Palette = readPalette(root);
  const view = new StudyView(store, () => palette);
  const [notices, code, lost] = [new Notices(store), new CodeLine(store), new KernelEnded(store, texts.study.kernelEnded)];
  root.append(lost.root, notices.root, view.root, code.root);
  const painter = new DrawScheduler(root, [
    { topics: ["lost"], draw: () => lost.draw(root) },
    { topics: ["notices"], draw: () => notices.draw() },
    { topics: ["code"], draw: () => code.draw() },
    ...view.drawers(() => true),
  ]);
  const stop = store.listen((topics) => painter.hear(topics));
  const stopTheme = watchTheme(() => {
    followPage(root);
    palette = readPalette(root);
    view.redraw();
  });
  const freeKeys = keepKeys(root);
  const begin = () => {
    if (!root.isConnected) { // outside of the page nothing has a colour
      first = requestAnimationFrame(begin);
      return;
    }
    followPage(root);
    palette = readPalette(root);
    painter.everything();
  };
  let first = requestAnimationFrame(begin);
  return () => {
    cancelAnimationFrame(first);
    stop();
    painter.stop();
    stopTheme();
    freeKeys();
    view.destroy();
  };
}
