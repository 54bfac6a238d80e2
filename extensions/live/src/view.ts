// One view: the cards in their grid, drawn at most once a frame, and only what has news.

import { CodeLine } from "./code";
import { el } from "./dom";
import { Compare } from "./compare";
import { Finder } from "./finder";
import { Health } from "./health";
import { Heat } from "./heat";
import { Loss } from "./loss";
import { nameHandles } from "./names";
import { Norm } from "./norm";
import { ProgressLine } from "./progress";
import { Opened, Runs } from "./runs";
import { Sizes } from "./sizes";
import { Script } from "./script";
import type { Store, Topic } from "./store";
import { followPage, readPalette, watchTheme, type Palette } from "./theme";

interface Drawer {
  topics: Topic[];
  draw: () => void;
}

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
  const opened = new Opened(store);
  const code = new CodeLine(store);
  const script = new Script(store);
  const grid = el("div", "wb-grid");
  grid.append(...[finder, loss, heat, norm, sizes, runs, compare, health].map((part) => part.card.root));
  root.append(opened.root, progress.root, script.root, grid, code.root);

  const drawers: Drawer[] = [
    { topics: ["progress", "said", "memory"], draw: () => progress.draw() },
    { topics: ["script"], draw: () => script.draw() },
    { topics: ["followed"], draw: () => root.toggleAttribute("data-followed", store.state.followed === true) },
    { topics: ["curve", "earlier", "swept", "earlier_curves"], draw: () => finder.draw() },
    { topics: ["fit", "val", "changes", "past", "rates"], draw: () => loss.draw() },
    { topics: ["runs"], draw: () => runs.draw() },
    { topics: ["compared"], draw: () => (compare.draw(), runs.compared()) },
    { topics: ["opened", "runs"], draw: () => (opened.draw(), runs.opened()) },
    { topics: ["health"], draw: () => health.draw() },
    { topics: ["heat", "map", "picks", "broken", "ratios"], draw: () => heat.draw() },
    { topics: ["fit", "clips", "norm", "changes", "picked", "picks"], draw: () => norm.draw() },
    { topics: ["trials", "search", "trying", "room", "chosen"], draw: () => sizes.draw() },
    { topics: ["code"], draw: () => code.draw() },
    { topics: ["marker"], draw: () => finder.move() },
    { topics: ["clip"], draw: () => norm.move() },
  ];
  const schedule = painter(drawers);
  const stop = store.listen(schedule);
  const stopTheme = watchTheme(() => {
    followPage(root);
    palette = readPalette(root);
    [finder, loss, norm, compare].forEach((part) => part.redraw());
    heat.draw();
  });
  let unname = () => {};
  requestAnimationFrame(() => {
    followPage(root); // only now is the view in the page
    unname = nameHandles(root);
    palette = readPalette(root);
    drawers.forEach((drawer) => drawer.draw());
  });
  return () => {
    stop();
    stopTheme();
    unname();
    [finder, loss, norm, heat, compare].forEach((part) => part.destroy());
  };
}

/** Collects what has news and draws it with the next frame; a hidden page has no frames. */
function painter(drawers: Drawer[]): (topics: ReadonlySet<Topic>) => void {
  const news = new Set<Topic>();
  return (topics) => {
    const asked = news.size > 0;
    topics.forEach((topic) => news.add(topic));
    if (asked || news.size === 0) return;
    requestAnimationFrame(() => {
      const now = new Set(news);
      news.clear();
      for (const drawer of drawers) {
        if (drawer.topics.some((topic) => now.has(topic))) drawer.draw();
      }
    });
  };
}
