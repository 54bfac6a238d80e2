// One view: the cards in their grid, drawn at most once a frame, and only what has news.

import { CodeLine } from "./code";
import { el } from "./dom";
import { Compare } from "./compare";
import { Finder } from "./finder";
import { Health } from "./health";
import { Heat } from "./heat";
import { going } from "./keyboard";
import { Loss } from "./loss";
import { nameHandles } from "./names";
import { Norm } from "./norm";
import { type Drawer, drawn, Painter } from "./painter";
import { ProgressLine } from "./progress";
import { Opened, Runs } from "./runs";
import { Sizes } from "./sizes";
import { Script } from "./script";
import type { Store } from "./store";
import { followPage, readPalette, watchTheme, type Palette } from "./theme";

let views = 0;

/** Build a view in `host`. Returns what to call when it goes. */
export function show(store: Store, host: HTMLElement): () => void {
  const root = el("div", "wb-live");
  host.append(root);
  followPage(root);
  let palette: Palette = readPalette(root);
  const colours = () => palette;
  const sync = `wb-${(views += 1)}`;

  const progress = new ProgressLine(store);
  const finder = new Finder(store, colours);
  const loss = new Loss(store, colours, sync);
  const norm = new Norm(store, colours, sync);
  const heat = new Heat(store, colours);
  const sizes = new Sizes(store);
  const runs = new Runs(store);
  const compare = new Compare(store, colours);
  const health = new Health(store);
  const opened = new Opened(store, (run) => runs.focus(run));
  const code = new CodeLine(store);
  const script = new Script(store);
  const grid = el("div", "wb-grid");
  grid.append(...[finder, loss, heat, norm, sizes, runs, compare, health].map((part) => part.card.root));
  root.append(opened.root, progress.root, script.root, grid, code.root);

  const drawers: Drawer[] = [
    { topics: ["progress", "said", "memory"], draw: () => progress.draw() },
    { topics: ["script"], draw: () => script.draw() },
    { topics: ["kept"], draw: () => runs.kept() },
    { topics: ["followed"], draw: () => root.toggleAttribute("data-followed", store.state.followed === true) },
    { topics: ["curve", "earlier", "swept", "raced", "earlier_curves"], draw: () => finder.draw(), plot: true },
    { topics: ["fit", "val", "changes", "past", "rates"], draw: () => loss.draw(), plot: true },
    { topics: ["runs"], draw: () => runs.draw() },
    { topics: ["compared"], draw: () => (compare.draw(), runs.compared()), plot: true },
    { topics: ["opened", "runs"], draw: () => (opened.draw(), runs.opened()) },
    { topics: ["health", "time"], draw: () => health.draw() },
    { topics: ["fit", "heat", "map", "picks", "broken", "ratios"], draw: () => heat.draw(), plot: true },
    // At the end a map says how far it goes, and what waited for rows, as the keyboard is on it, waits no longer.
    ...[loss, heat, norm].map((part): Drawer => ({ topics: ["progress"], draw: () => { if (!going(store)) part.draw(); }, plot: true })),
    { topics: ["fit", "clips", "norm", "changes", "picked", "picks"], draw: () => norm.draw(), plot: true },
    { topics: ["trials", "search", "trying", "room", "chosen", "followed"], draw: () => sizes.draw() },
    { topics: ["code"], draw: () => code.draw() },
    { topics: ["marker"], draw: () => finder.move() },
    { topics: ["clip"], draw: () => norm.move() },
  ];
  const painter = new Painter(root, drawers);
  const stop = store.listen((topics) => painter.hear(topics));
  const stopTheme = watchTheme(() => {
    followPage(root);
    palette = readPalette(root);
    [finder, loss, norm, compare].forEach((part) => part.redraw());
    heat.draw();
  });
  let unname = () => {};
  const begin = () => {
    if (!root.isConnected) { // a panel or a notebook that is built up slowly: outside of the page nothing has a colour
      first = requestAnimationFrame(begin);
      return;
    }
    followPage(root);
    unname = nameHandles(root);
    palette = readPalette(root);
    drawers.forEach(drawn);
  };
  let first = requestAnimationFrame(begin);
  return () => {
    cancelAnimationFrame(first);
    stop();
    painter.stop();
    stopTheme();
    unname();
    [finder, loss, norm, heat, compare].forEach((part) => part.destroy());
  };
}
