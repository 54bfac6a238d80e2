// One view of the canvas: makes the stage and the drawer with their cards, and says which news each card draws.

import { CodeLine } from "./status/code-line";
import { el, keepKeys } from "./shared/dom";
import { Compare } from "./runs/compare";
import { LRFinder } from "./lr-finder/lr-finder";
import { Health } from "./status/health";
import { HeatMap } from "./gradients/heat-map";
import { Loss } from "./training/loss";
import { Histograms } from "./gradients/histograms";
import { KernelEnded } from "./status/kernel-ended";
import { Form } from "./controls/form";
import { Header } from "./controls/header";
import { Notices } from "./controls/notices";
import { RunBar } from "./controls/run-bar";
import { Title } from "./controls/title";
import { Norm } from "./gradients/norm";
import { Speed } from "./training/speed";
import { FitAxis } from "./plot/axis";
import { Hover } from "./plot/hover";
import { type Drawer as Drawn, DrawScheduler } from "./draw-scheduler";
import { ProgressLine } from "./status/progress";
import { Queue } from "./status/queue";
import { RecordedRun } from "./runs/recorded-run";
import { Samples } from "./samples/samples";
import { Runs } from "./runs/runs";
import { BatchSize } from "./batch-size/batch-size";
import { Drawer, type TabName } from "./stage/drawer";
import { Stage } from "./stage/stage";
import { Timeline } from "./stage/timeline";
import { TimeSpent } from "./training/time-spent";
import { Script } from "./status/script";
import type { Store } from "./data/store";
import { StudyView } from "./study/study";
import { followPage, readPalette, watchTheme, type Palette } from "./shared/theme";

/** Build a view in `host`. Returns what to call when it goes. */
export function show(store: Store, host: HTMLElement): () => void {
  const [panel, root] = [el("div", "wb-panel"), el("div", "wb-live")];
  panel.append(root);
  host.append(panel);
  followPage(root);
  let palette: Palette = readPalette(root);
  const colours = () => palette;
  const [axis, hover] = [new FitAxis(store), new Hover()];

  const title = new Title(store);
  const header = new Header(store);
  const bar = new RunBar(store);
  const notices = new Notices(store);
  const form = new Form(store);
  const progress = new ProgressLine(store);
  const queue = new Queue(store);
  const finder = new LRFinder(store, colours);
  const loss = new Loss(store, colours, axis, hover);
  const norm = new Norm(store, colours, axis, hover);
  const pace = new Speed(store, colours, axis, hover);
  const heat = new HeatMap(store, colours, axis, hover);
  const histograms = new Histograms(store);
  const sizes = new BatchSize(store, colours);
  const runs = new Runs(store);
  const compare = new Compare(store, colours);
  const health = new Health(store);
  const samples = new Samples(store);
  const time = new TimeSpent(store);
  const lost = new KernelEnded(store);
  const opened = new RecordedRun(store, (run) => runs.focus(run));
  const code = new CodeLine(store);
  const script = new Script(store);
  const study = new StudyView(store, colours);
  const stage = new Stage(store, { find_batch_size: sizes.card, find_lr: finder.card, fit: loss.card, study });
  const drawer = new Drawer(store, {
    samples: [samples.card.root], gradients: [norm.card.root, heat.card.root, histograms.card.root], pace: [pace.card.root, time.card.root],
    settings: [form.root], runs: [compare.card.root, runs.card.root],
  });
  const timeline = new Timeline(store);
  const below = el("div", "wb-under-bar"); // over its right side lies the script, which leaves the controls free
  below.append(notices.root, opened.root, progress.root, health.root, stage.root, script.root, queue.root, timeline.root, code.root, drawer.root);
  root.append(lost.root, title.root, header.root, bar.root, below);

  const on = (kind: string) => () => stage.shows(kind);
  const within = (tab: TabName) => () => drawer.shows(tab);
  const drawers: Drawn[] = [
    { topics: ["lost"], draw: () => lost.draw(root) },
    { topics: ["title"], draw: () => title.draw() },
    { topics: ["buttons", "steps", "field"], draw: () => header.draw() },
    { topics: ["curve", "marker"], draw: () => header.move() },
    { topics: ["buttons", "steps", "field", "frozen"], draw: () => bar.draw() },
    { topics: ["notices"], draw: () => notices.draw() },
    { topics: ["form", "field", "buttons", "schedule"], draw: () => form.draw(), shown: within("settings") },
    { topics: ["drawer"], draw: () => (form.follow(), bar.draw()) },
    { topics: ["stage", "answers", "followed"], draw: () => stage.draw() },
    { topics: ["drawer", "followed", "still", "samples"], draw: () => drawer.draw() },
    { topics: ["compared", "followed"], draw: () => (drawer.compare(), runs.compared()) },
    { topics: ["progress", "said", "memory", "health"], draw: () => progress.draw() },
    ...study.drawers(on("study")),
    { topics: ["timeline", "opened", "stage", "study"], draw: () => timeline.draw() },
    { topics: ["overlay"], draw: () => loss.lay(), plot: true, shown: on("fit") },
    { topics: ["overlay"], draw: () => finder.lay(), plot: true, shown: on("find_lr") },
    { topics: ["queue"], draw: () => queue.draw() },
    { topics: ["script", "writing"], draw: () => script.draw() },
    { topics: ["followed", "still"], draw: () => {
      root.toggleAttribute("data-followed", store.state.followed === true);
      root.toggleAttribute("data-still", store.state.still === true);
    } },
    { topics: ["curve", "earlier", "swept", "raced", "earlier_curves"], draw: () => finder.draw(), plot: true, shown: on("find_lr") },
    { topics: ["fit", "val", "changes", "past", "rates", "metrics", "clock"], draw: () => loss.draw(), plot: true, shown: on("fit") },
    { topics: ["runs", "rows", "explained", "moving", "ended", "unkept", "deleting", "notes"], draw: () => runs.draw(), shown: within("runs") },
    { topics: ["compared", "compared_marks"], draw: () => compare.draw(), plot: true, shown: within("runs") },
    { topics: ["opened", "runs"], draw: () => (opened.draw(), runs.opened()) },
    { topics: ["health", "failure", "progress"], draw: () => health.draw() },
    { topics: ["samples", "sample", "still"], draw: () => samples.draw(), shown: within("samples") },
    { topics: ["time"], draw: () => time.draw(), shown: within("pace") },
    { topics: ["fit", "heat", "map", "picks", "broken", "ratios"], draw: () => heat.draw(), plot: true, shown: within("gradients") },
    { topics: ["histograms", "picks", "progress", "still"], draw: () => histograms.draw(), shown: within("gradients") },
    { topics: ["clock"], draw: () => pace.draw(), plot: true, shown: within("pace") },
    { topics: ["fit", "clips", "norm", "changes", "picked", "picks"], draw: () => norm.draw(), plot: true, shown: within("gradients") },
    // When a job ends, the plots that were kept for the keyboard's focus are drawn again.
    { topics: ["progress"], draw: () => { if (!store.jobRuns) loss.draw(); }, plot: true, shown: on("fit") },
    ...[heat, norm].map((part): Drawn => ({ topics: ["progress"], draw: () => { if (!store.jobRuns) part.draw(); }, plot: true, shown: within("gradients") })),
    { topics: ["trials", "search", "trying", "room", "chosen", "followed"], draw: () => sizes.draw(), shown: on("find_batch_size") },
    { topics: ["code"], draw: () => code.draw() },
    { topics: ["marker"], draw: () => finder.move(), shown: on("find_lr") },
    { topics: ["clip"], draw: () => norm.move(), shown: within("gradients") },
  ];
  const painter = new DrawScheduler(root, drawers);
  const stop = store.listen((topics) => painter.hear(topics));
  const stopTheme = watchTheme(() => {
    followPage(root);
    palette = readPalette(root);
    [finder, loss, norm, pace, sizes, compare, study].forEach((part) => part.redraw());
    heat.draw();
  });
  const freeKeys = keepKeys(root);
  const begin = () => {
    if (!root.isConnected) { // a panel or a notebook that is built up slowly: outside of the page nothing has a colour
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
    [finder, loss, norm, heat, pace, sizes, compare, study, runs].forEach((part) => part.destroy());
  };
}
