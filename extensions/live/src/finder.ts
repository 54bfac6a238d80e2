// The learning-rate sweep: raw losses faint, the smoothed line, what each rule suggests, the rate you chose, earlier sweeps behind.

import uPlot from "uplot";
import { Band, distance } from "./band";
import { Behind } from "./behind";
import { Card } from "./card";
import { Choice } from "./choice";
import { Flags, height, measure, place, ROW, type Flag, type Placed } from "./flags";
import { number, rate, tick } from "./format";
import { Groups } from "./groups";
import { Handle } from "./handle";
import { byKeyboard } from "./keyboard";
import { lossRange } from "./losses";
import { baseOptions, followWidth, HEIGHT, logSplits, type PaletteOf } from "./plot";
import type { Store } from "./store";
import { isBest, Verdict } from "./verdict";

const LR = 0, LOSS = 1, SMOOTHED = 2; // columns, as workbench/ui/canvas/sweeps.py has them
const BASE = 10; // padding above the plot where no names are
const ROOM = 4; // times the last rate: a rate beyond divergence is seen to be one
const USUAL = 2; // rows of names that the usual height has room for

export class Finder {
  readonly card = new Card(
    "Learning-rate finder",
    "Press Find beside the learning rate: the loss over rising rates appears here.",
    "finder",
  );
  private plot: uPlot | null = null;
  private readonly flags = new Flags();
  private placed: Placed[] = [];
  private arranged = "";
  private keyed = "";
  private readonly band = new Band();
  private readonly behind: Behind;
  private readonly groups: Groups;
  private readonly handle: Handle;
  private readonly verdict = new Verdict();
  private readonly close: () => void;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {
    this.behind = new Behind(store, colours);
    this.groups = new Groups(store, () => this.regroup());
    const shown = { factor: () => this.groups.base, text: (lr: number) => this.beside(lr) };
    this.handle = new Handle("x", new Choice(store.model, "marker"), "Chosen learning rate", () => this.move(), shown);
    this.card.tools.append(this.groups.root);
    this.card.root.append(this.verdict.root);
    this.close = followWidth(this.card.body, () => this.plot);
  }

  draw(): void {
    const rows = this.store.curve.rows;
    const swept = this.store.state.swept;
    this.card.empty = rows.count === 0 && swept?.run === undefined;
    if (this.card.root.classList.contains("wb-empty")) return;
    this.groups.draw(swept?.groups ?? []);
    this.behind.read();
    this.key();
    const data = [rows.column(LR), rows.line(LOSS), rows.line(SMOOTHED)] as uPlot.AlignedData;
    if (this.plot) this.plot.setData(data);
    else this.make(data);
    this.verdict.draw(this.store.state.curve ?? null, swept?.whose ?? "", this.groups.scale);
  }

  move(): void {
    this.key();
    this.handle.place();
    if (this.plot) this.band.place(this.plot, this.handle.value, this.diverged);
    this.card.setValue("you", rate(this.groups.scale(this.handle.value)));
  }

  redraw(): void {
    this.plot?.redraw(false);
  }

  destroy(): void {
    this.close();
    this.plot?.destroy();
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
    return [rate(this.groups.scale(lr)), distance(lr, this.diverged)].filter(Boolean).join(" · ");
  }

  /** All rates are now another group's. */
  private regroup(): void {
    this.draw();
  }

  private key(): void {
    const you = this.handle.value > 0 ? [{ name: "you", swatch: "you" }] : []; // of another process's sweep nothing is chosen here
    const raced = this.raced.length ? [{ name: "raced", swatch: "raced" }] : [];
    const said = JSON.stringify([you, raced, this.behind.lines.map((line) => [line.run, this.behind.words(line, this.groups.scale)])]);
    if (said === this.keyed) return;
    this.keyed = said;
    const earlier = this.behind.lines.map((line, i) => ({ name: line.run, swatch: `earlier-${i + 2 - this.behind.lines.length}` }));
    this.card.setKey([
      { name: "raw", swatch: "dots" },
      { name: "smoothed", swatch: "line" },
      { name: "suggested", swatch: "diamond" },
      ...raced,
      ...you,
      ...earlier,
    ]);
    for (const line of this.behind.lines) this.card.setValue(line.run, this.behind.words(line, this.groups.scale));
  }

  private make(data: uPlot.AlignedData): void {
    const base = baseOptions(this.colours, { x: "learning rate", y: "loss" });
    const [x, y] = base.axes as [uPlot.Axis, uPlot.Axis];
    const scale = this.groups.scale;
    const options: uPlot.Options = {
      ...base,
      width: this.card.body.clientWidth || 300,
      padding: [() => BASE + height(this.placed), 14, 0, 0],
      scales: {
        x: { time: false, distr: 3, range: () => this.rates() },
        y: { range: () => lossRange(this.store.curve.rows.column(LOSS), this.store.curve.rows.column(SMOOTHED), this.behind.lines, this.raced) },
      },
      axes: [
        {
          ...x,
          splits: (_u, _i, min, max) => logSplits(scale(min), scale(max)).map((own) => own / scale(1)),
          filter: (_u, s) => s,
          values: (_u, s) => s.map((lr) => rate(scale(lr))),
        },
        { ...y, values: (_u, s) => s.map((v) => (v == null ? "" : tick(v))) },
      ],
      series: [
        {},
        { stroke: () => this.colours().dots, paths: () => null, points: { show: true, size: 4, width: 0, fill: () => this.colours().dots } },
        { stroke: () => this.colours().line, width: 2, points: { show: false } },
      ],
      hooks: {
        drawAxes: [(u) => this.behind.draw(u)],
        draw: [(u) => this.marks(u)],
        setCursor: [(u) => this.read(u)],
        setSize: [() => this.soon()],
      },
    };
    this.plot = new uPlot(options, data, this.card.body);
    byKeyboard(this.plot, "Loss over rising learning rates", () => this.card.words());
    this.band.attach(this.plot);
    this.behind.attach(this.plot);
    this.handle.attach(this.plot);
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
    const plot = this.plot;
    const { min, max } = plot?.scales["x"] ?? {};
    if (!plot || min == null || max == null) return;
    const suggestions = this.suggestions();
    const now = JSON.stringify([plot.over.clientWidth, min, max, suggestions]);
    if (now === this.arranged) return;
    this.arranged = now;
    const flags = suggestions.filter((flag) => flag.x >= min && flag.x <= max);
    this.placed = place(flags, (x) => plot.valToPos(x, "x"), plot.over.clientWidth, measure(this.card.body));
    const more = Math.max(0, height(this.placed) - USUAL * ROW - 4);
    plot.setSize({ width: plot.width, height: HEIGHT + more }); // asks for the padding again
    this.flags.show(plot, this.placed);
  }

  private suggestions(): Flag[] {
    const curve = this.store.state.curve;
    if (!curve) return [];
    const { scale } = this.groups;
    const flags = curve.suggestions.flatMap((s): Flag[] => {
      if (s.lr === null) return [];
      const said = `${s.name} ${rate(scale(s.lr))}`;
      return [{ x: s.lr, text: said, title: `${said}. ${s.why}`, strong: isBest(s, curve) }];
    });
    if (curve.suggestion !== null && !flags.some((flag) => flag.strong)) {
      const said = `suggested ${rate(scale(curve.suggestion))}`;
      flags.push({ x: curve.suggestion, text: said, title: "The recommended rate", strong: true });
    }
    return flags;
  }

  private marks(plot: uPlot): void {
    this.soon();
    const { ctx } = plot;
    const { found, paper } = this.colours();
    const scale = devicePixelRatio;
    ctx.save();
    for (const flag of [...this.placed].sort((a, b) => Number(a.strong) - Number(b.strong))) { // the recommended one over the others
      const x = plot.valToPos(flag.x, "x", true);
      const y = Math.max(plot.valToPos(this.smoothedAt(flag.x), "y", true), plot.bbox.top);
      ctx.strokeStyle = found;
      ctx.lineWidth = scale * (flag.strong ? 1.5 : 0.75);
      ctx.globalAlpha = flag.strong ? 0.9 : 0.5;
      ctx.beginPath();
      ctx.moveTo(x, plot.bbox.top - ((flag.row + 1) * ROW + 1) * scale);
      ctx.lineTo(x, y);
      ctx.stroke();
      ctx.globalAlpha = 1;
      diamond(ctx, x, y, (flag.strong ? 7 : 4.5) * scale);
      ctx.fillStyle = flag.strong ? found : paper;
      ctx.lineWidth = 1.5 * scale;
      ctx.fill();
      ctx.stroke();
    }
    this.race(plot);
    ctx.restore();
    this.move();
  }

  /** Rings at the held-out losses of the race, joined by a dotted line. */
  private race(plot: uPlot): void {
    const { ctx } = plot;
    const { chosen, paper } = this.colours();
    const places = this.raced.map(([lr, loss]) => [plot.valToPos(lr, "x", true), plot.valToPos(loss, "y", true)] as const);
    ctx.strokeStyle = chosen;
    ctx.fillStyle = paper;
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    for (const [x, y] of places) ctx.lineTo(x, y);
    ctx.stroke();
    ctx.setLineDash([]);
    for (const [x, y] of places) {
      ctx.beginPath();
      ctx.arc(x, y, 4 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fill();
      ctx.stroke();
    }
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

  private read(plot: uPlot): void {
    const { idx: i, left = -1, top = -1 } = plot.cursor;
    const rows = this.store.curve.rows;
    const there = i != null && left >= 0;
    this.card.setValue("raw", there ? number(rows.at(i, LOSS)) : "");
    this.card.setValue("smoothed", there ? `${number(rows.at(i, SMOOTHED))} at ${rate(this.groups.scale(rows.at(i, LR)))}` : "");
    if (this.behind.hover(plot, left, top, this.groups.scale)) plot.redraw(false);
  }
}

function diamond(ctx: CanvasRenderingContext2D, x: number, y: number, r: number): void {
  ctx.beginPath();
  ctx.moveTo(x, y - r);
  ctx.lineTo(x + r, y);
  ctx.lineTo(x, y + r);
  ctx.lineTo(x - r, y);
  ctx.closePath();
}
