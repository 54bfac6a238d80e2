// The card of the learning-rate finder: losses of the sweep, suggestions, the chosen rate and earlier sweeps.

import type uPlot from "uplot";
import { DivergenceBand, distance } from "./divergence-band";
import { EarlierSweeps } from "./earlier-sweeps";
import { Card } from "../shared/card";
import { NumberTrait } from "../shared/number-trait";
import { SuggestionLabels, height, measure, place, ROW, type SuggestionLabel, type Placed } from "./suggestion-labels";
import { number, rate } from "../shared/format";
import { ParamGroups } from "./param-groups";
import { DragHandle } from "../plot/drag-handle";
import { lossRange } from "./loss-range";
import { Frame } from "../plot/frame";
import type { Layer } from "../plot/layers";
import { Overlay } from "../plot/overlay";
import { csvOf, svgOf } from "../plot/save";
import { logSplits, type PaletteOf } from "../plot/scales";
import { plotTools } from "../plot/toolbar";
import type { Store } from "../data/store";
import { bestOf, isBest, SweepResult } from "./sweep-result";
import { texts } from "../texts";

const LR = 0, LOSS = 1, SMOOTHED = 2; // columns, as workbench/ui/canvas/searches/sweeps.py has them
const BASE = 10; // padding above the plot where no names are
const BESIDE = 12; // padding beside the plot into which a name may reach
const { lrFinder: words } = texts;
const ROOM = 4; // times the last rate: a rate beyond divergence is seen to be one

export class LRFinder {
  readonly card = new Card(words.title, words.hint, "finder");
  private readonly frame: Frame;
  private readonly flags = new SuggestionLabels();
  private placed: Placed[] = [];
  private arranged = "";
  private keyed = "";
  private readonly band = new DivergenceBand();
  private readonly earlier: EarlierSweeps;
  private readonly overlay: Overlay;
  private readonly groups: ParamGroups;
  private readonly handle: DragHandle;
  private readonly verdict = new SweepResult();

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {
    this.earlier = new EarlierSweeps(store, colours);
    this.overlay = new Overlay(store, colours, "find_lr", () => 0);
    this.groups = new ParamGroups(store, () => this.regroup());
    const shown = { factor: () => this.groups.base, text: (lr: number) => this.beside(lr) };
    this.handle = new DragHandle("x", new NumberTrait(store.model, "marker"), words.chosen, () => this.move(), shown);
    this.frame = new Frame(this.card.body, colours, {
      name: words.plot,
      places: () => store.curve.rows.column(LR),
      layers: () => this.layers(),
      across: () => ({
        label: words.across, log: true, words: (lr) => rate(this.groups.scale(lr)), range: () => this.rates(),
        splits: (min, max) => logSplits(this.groups.scale(min), this.groups.scale(max)).map((own) => own / this.groups.scale(1)),
      }),
      up: words.up,
      fit: () => store.curve.rows.line(SMOOTHED),
      range: () => lossRange(store.curve.rows.column(LOSS), store.curve.rows.column(SMOOTHED), this.earlier.lines, this.raced),
      read: (at) => this.read(at),
      words: () => this.card.placed(),
      moved: (plot) => this.hover(plot),
      made: (plot) => this.made(plot),
      drawn: (plot) => this.marks(plot),
      above: () => BASE + height(this.placed),
      saved: () => this.names(),
    });
    this.card.tools.append(this.groups.root);
    plotTools(this.card, "learning-rate-finder", {
      svg: () => svgOf(this.frame, words.title, colours()),
      csv: () => csvOf(words.across, this.layers()),
    }, this.frame);
    this.card.root.append(this.verdict.root);
  }

  draw(): void {
    const rows = this.store.curve.rows;
    const swept = this.store.state.swept;
    this.card.empty = rows.count === 0 && swept?.run === undefined;
    if (this.card.root.classList.contains("wb-empty")) return;
    this.groups.draw(swept?.groups ?? []);
    this.earlier.read();
    this.key();
    this.frame.draw();
    this.verdict.draw(this.store.state.curve ?? null, swept?.whose ?? "", this.groups.scale);
  }

  move(): void {
    this.key();
    this.handle.place();
    if (this.frame.plot) this.band.place(this.frame.plot, this.handle.value, this.diverged);
    this.card.setValue(words.current, rate(this.groups.scale(this.handle.value)));
  }

  /** The curve of another job comes or goes. */
  lay(): void {
    this.frame.redraw();
    this.overlay.draw(this.frame.plot);
  }

  redraw(): void {
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  private get diverged(): number | null {
    return this.store.state.curve?.diverged ?? null;
  }

  /** The rates that trained for a while, with finite losses, by rate. */
  private get raced(): [number, number][] {
    const found = (this.store.state.raced ?? []).flatMap(({ lr, loss }): [number, number][] => (loss === null ? [] : [[lr, loss]]));
    return found.sort(([a], [b]) => a - b);
  }

  private beside(lr: number): string {
    return [rate(this.groups.scale(lr)), distance(lr, this.diverged)].filter(Boolean).join(texts.separator);
  }

  /** All rates are now another group's. */
  private regroup(): void {
    this.draw();
  }

  private key(): void {
    const you = this.handle.value > 0 ? [{ name: words.current, swatch: "you" }] : []; // of another process's sweep nothing is chosen here
    const raced = this.raced.length ? [{ name: words.raced, swatch: "raced" }] : [];
    const said = JSON.stringify([you, raced, this.earlier.lines.map((line) => [line.run, this.earlier.words(line, this.groups.scale)])]);
    if (said === this.keyed) return;
    this.keyed = said;
    const earlier = this.earlier.lines.map((line, i) => ({ name: line.run, swatch: `earlier-${i + 2 - this.earlier.lines.length}` }));
    this.card.setKey([
      { name: words.raw, swatch: "dots", room: 8 },
      { name: words.smoothed, swatch: "line", room: 8 },
      ...raced,
      ...you,
      ...earlier,
    ]);
    for (const line of this.earlier.lines) this.card.setValue(line.run, this.earlier.words(line, this.groups.scale));
  }

  private made(plot: uPlot): void {
    this.arranged = "";
    this.band.attach(plot);
    this.earlier.attach(plot);
    this.handle.attach(plot);
  }

  private layers(): Layer[] {
    const rows = this.store.curve.rows;
    const { dots, line, found, chosen } = this.colours();
    const x = rows.column(LR);
    const raced = this.raced;
    const [rates, losses] = [raced.map(([lr]) => lr), raced.map(([, loss]) => loss)];
    const flags = this.suggestions().sort((a, b) => Number(a.strong) - Number(b.strong)); // the recommended one over the others
    return [
      ...this.earlier.layers(),
      ...this.overlay.layers(),
      { name: words.raw, kind: "dots", x, y: rows.line(LOSS), colour: dots, size: 2 },
      { name: words.smoothed, kind: "line", x, y: rows.line(SMOOTHED), colour: line, width: 2 },
      ...flags.map(({ x: lr, strong }): Layer => ({ name: words.suggested, kind: "dots", x: [lr], y: [this.smoothedAt(lr)], colour: found, shape: "diamond", size: strong ? 7 : 4.5 })),
      { name: "", kind: "line", x: rates, y: losses, colour: chosen, dash: [2, 3] },
      ...(raced.length ? [{ name: words.raced, kind: "dots", x: rates, y: losses, colour: chosen, shape: "ring", size: 4 } as Layer] : []),
    ];
  }

  /** For a saved picture: what each rule suggests, above the plot. */
  private names(): Layer[] {
    const flags = this.suggestions().sort((a, b) => Number(b.strong) - Number(a.strong));
    return flags.map(({ x, text, strong }) => ({ name: "", kind: "rules", x: [x], y: [], texts: strong ? [text] : [], colour: this.colours().found, alpha: strong ? 0.9 : 0.4 }));
  }

  /** While it is measured all rates that were asked for; then those that it came to, with some room where it diverged. */
  private rates(): [number, number] {
    const { swept, curve } = this.store.state;
    const rows = this.store.curve.rows;
    const [first, last] = rows.count ? [rows.at(0, LR), rows.at(rows.count - 1, LR)] : [1e-5, 10];
    const [least, most] = [Math.min(swept?.low ?? first, first), Math.max(swept?.high ?? last, last)];
    const beyond = curve?.diverged == null ? last : Math.max(last, Math.min(most, last * ROOM));
    const [low, high] = curve ? [first, beyond] : [least, most];
    return low < high ? [low, high] : [low / 2, low * 2];
  }

  /** uPlot forgets a new size that is set while it draws. */
  private soon(): void {
    queueMicrotask(() => this.arrange());
  }

  /** Where the names go; their rows push the plot down. Nothing happens while nothing has changed. */
  private arrange(): void {
    const plot = this.frame.plot;
    const { min, max } = plot?.scales["x"] ?? {};
    if (!plot || min == null || max == null) return;
    const suggestions = this.suggestions();
    const now = JSON.stringify([plot.over.clientWidth, min, max, suggestions]);
    if (now === this.arranged) return;
    this.arranged = now;
    const flags = suggestions.filter((flag) => flag.x >= min && flag.x <= max);
    this.placed = place(flags, (x) => plot.valToPos(x, "x"), plot.over.clientWidth + BESIDE, measure(this.card.body));
    this.frame.resize(true); // asks for the room above again
    this.flags.show(plot, this.placed);
  }

  private suggestions(): SuggestionLabel[] {
    const curve = this.store.state.curve;
    if (!curve) return [];
    const { scale } = this.groups;
    const best = bestOf(curve);
    const flags = curve.suggestions.flatMap((s): SuggestionLabel[] => {
      if (s.lr === null || (isBest(s, curve) && s !== best)) return []; // one name for one rate
      const [value, strong] = [rate(scale(s.lr)), s === best];
      return [{ x: s.lr, text: strong ? words.recommendedFlag(value) : words.ruleFlag(s.name, value), title: words.ruleTooltip(s.name, value, s.why), strong }];
    });
    if (curve.suggestion !== null && !flags.some((flag) => flag.strong)) {
      const said = words.recommendedFlag(rate(scale(curve.suggestion)));
      flags.push({ x: curve.suggestion, text: said, title: words.recommendedTooltip, strong: true });
    }
    return flags;
  }

  /** The poles of the names above the plot. */
  private marks(plot: uPlot): void {
    this.soon();
    const { ctx } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = this.colours().found;
    for (const flag of this.placed) {
      const x = plot.valToPos(flag.x, "x", true);
      ctx.lineWidth = scale * (flag.strong ? 1.5 : 0.75);
      ctx.globalAlpha = flag.strong ? 0.9 : 0.5;
      ctx.beginPath();
      ctx.moveTo(x, plot.bbox.top - ((flag.row + 1) * ROW + 1) * scale);
      ctx.lineTo(x, Math.max(plot.valToPos(this.smoothedAt(flag.x), "y", true), plot.bbox.top));
      ctx.stroke();
    }
    ctx.restore();
    this.move();
  }

  /** The smoothed loss at a rate between two points, on the logarithmic axis. */
  private smoothedAt(lr: number): number {
    const rows = this.store.curve.rows;
    let i = 1;
    while (i < rows.count - 1 && rows.at(i, LR) < lr) i += 1;
    const [x0, x1] = [rows.at(i - 1, LR), rows.at(i, LR)];
    const [y0, y1] = [rows.at(i - 1, SMOOTHED), rows.at(i, SMOOTHED)];
    const share = x1 > x0 ? Math.log(lr / x0) / Math.log(x1 / x0) : 1;
    return y0 + (y1 - y0) * Math.min(Math.max(share, 0), 1);
  }

  private read(at: number | null): void {
    const rows = this.store.curve.rows;
    this.card.setValue(words.raw, at === null ? "" : number(rows.at(at, LOSS)));
    this.card.setValue(words.smoothed, at === null ? "" : number(rows.at(at, SMOOTHED)));
    this.card.setAt(at === null ? "" : words.at(rate(this.groups.scale(rows.at(at, LR)))));
  }

  private hover(plot: uPlot): void {
    const { left = -1, top = -1 } = plot.cursor;
    if (this.earlier.hover(plot, left, top, this.groups.scale)) plot.redraw(false);
  }
}
