// The card of the batch-size search: speed and memory over size in one plot, the limits, and a button for each size that fits.

import { Limits } from "./limits";
import { Card } from "../shared/card";
import { el, setText, focusIn } from "../shared/dom";
import { bytes, pace } from "../shared/format";
import { Frame, spanOf } from "../plot/frame";
import type { Layer, Value } from "../plot/layers";
import { csvOf, svgOf } from "../plot/save";
import type { PaletteOf } from "../plot/scales";
import { plotTools } from "../plot/toolbar";
import type { Store } from "../data/store";
import { failure, name } from "./trial";
import type { Trial } from "../data/messages";
import { texts } from "../texts";

const DIGIT = 7, GAP = 6; // pixels of a digit on the axis, and between two numbers
const NARROW = 240; // pixels of a plot that has no width yet
const IN_SIGHT = 8; // times the highest peak: a limit farther away would flatten the memory
const HEIGHT = 200;
const { batchSize: words } = texts;

export class BatchSize {
  readonly card = new Card(words.title, words.hint, "sizes");
  private readonly frame: Frame;
  private readonly doing = el("div", "wb-doing", "", { role: "status" });
  private readonly bounds: Limits;
  private readonly takes = el("div", "wb-takes", "", { role: "group", "aria-label": words.fitting, "data-legend": words.legend });
  private readonly failed = el("ul", "wb-failures");
  private readonly room = el("div", "wb-caption");
  private limited: boolean | null = null; // as the key tells it
  private readonly lines = new Map<string, { of: string; line: HTMLElement }>();

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {
    this.bounds = new Limits(store, (trial) => this.use(trial));
    this.frame = new Frame(this.card.body, colours, {
      name: words.plot,
      places: () => this.trials.map((trial) => trial.size),
      layers: () => this.layers(),
      across: () => ({ label: words.across, log: true, words: (size) => String(size), range: () => this.reach(), splits: () => this.numbers() }),
      up: words.speed,
      fit: () => this.trials.map((trial) => trial.rate),
      right: { label: words.memoryAxis, words: bytes, log: true, fit: () => [...this.trials.map((trial) => trial.peak), this.limit] },
      range: (log) => spanOf(this.trials.flatMap(({ rate, rate_within: within }) => (rate === null ? [] : [rate * (1 - (within ?? 0)), rate * (1 + (within ?? 0))])), log),
      read: (at) => this.read(at),
      words: () => this.card.placed(),
      height: HEIGHT,
    }, null, "on");
    plotTools(this.card, "batch-size", {
      svg: () => svgOf(this.frame, words.title, colours()),
      csv: () => csvOf(words.title, [...this.layers(), { name: words.updatesColumn, kind: "line", x: this.trials.map(({ size }) => size), y: this.trials.map(({ updates }) => updates), colour: "" }]),
    }, this.frame);
    this.card.key.before(this.doing);
    this.card.body.after(this.bounds.root, this.takes, this.failed);
    this.card.root.append(this.room);
  }

  draw(): void {
    const { trying: now, search } = this.store.state;
    const { trials } = this;
    this.card.empty = trials.length === 0 && !now;
    if (trials.length === 0 && !now) return;
    this.key();
    setText(this.doing, this.progress());
    this.doing.classList.toggle("wb-trying", Boolean(now));
    this.card.body.hidden = !trials.some((trial) => trial.rate !== null || trial.peak !== null);
    if (!this.card.body.hidden) this.frame.draw();
    this.bounds.draw();
    this.arrange(this.takes, trials.filter((trial) => trial.state === "fits").map((trial) => this.take(trial)));
    this.arrange(this.failed, trials.filter((trial) => trial.state !== "fits").map((trial) => this.kept(name(trial), trial, (before) => failure(trial, before))));
    const there = new Set(trials.map(name));
    for (const key of this.lines.keys()) if (!there.has(key)) this.lines.delete(key);
    const best = trials.find((trial) => trial.size === search?.best);
    setText(this.room, this.left(trials.find((trial) => this.inUse(trial) && trial.state === "fits") ?? best));
    this.read(this.frame.plot?.cursor.idx ?? null);
  }

  redraw(): void {
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  private get trials(): Trial[] {
    return this.store.state.trials ?? [];
  }

  /** How the search goes, or how it ended, in a sentence. */
  private progress(): string {
    const { trying: now, search } = this.store.state;
    const fits = this.trials.filter((trial) => trial.state === "fits");
    const most = fits.at(-1);
    const so = most ? words.fitSoFar(fits.length, name(most)) : words.noneBefore;
    if (now) return words.trying(name(now), so);
    return words.tried(this.trials.length, search?.ended ?? "");
  }

  private key(): void {
    const limited = this.limit !== null;
    if (this.limited === limited) return;
    this.limited = limited;
    this.card.setKey([
      { name: words.speed, swatch: "line", room: 12 },
      { name: words.memory, swatch: "peak", room: 9 },
      ...(limited ? [{ name: words.limit, swatch: "limit" }] : []),
    ]);
  }

  private layers(): Layer[] {
    const { line, peak, bad, found, chosen } = this.colours();
    const { trials } = this;
    const { search } = this.store.state;
    const x = trials.map((trial) => trial.size);
    const ends = (sign: number): Value[] => trials.map(({ rate, rate_within: within }) => (rate !== null && within !== null ? rate * (1 + sign * within) : null));
    const rates = trials.map((trial) => trial.rate);
    const peaks = trials.map((trial) => (trial.state === "fits" ? trial.peak : null));
    const failed = trials.filter((trial) => trial.state !== "fits");
    const used = trials.find((trial) => this.inUse(trial));
    const { limit } = this;
    const [from, to] = this.reach();
    const rule = (size: number, text: string, colour: string): Layer => ({ name: "", kind: "rules", x: [size], y: [], texts: [text], colour, dash: [3, 3] });
    return [
      ...(limit === null ? [] : [{ name: "", kind: "line", x: [from, to], y: [limit, limit], colour: bad, scale: "y2", width: 1.5 } as Layer]),
      { name: "", kind: "line", x, y: rates, colour: line, width: 1.5, joined: true },
      { name: words.speed, kind: "dots", x, y: rates, low: ends(-1), high: ends(1), colour: line },
      { name: "", kind: "line", x, y: peaks, colour: peak, dash: [7, 4], scale: "y2", joined: true },
      { name: words.memory, kind: "dots", x, y: peaks, colour: peak, shape: "square", size: 2.5, scale: "y2" },
      { name: "", kind: "dots", x: failed.map(({ size }) => size), y: failed.map((trial) => trial.peak), colour: bad, shape: "diamond", size: 4, scale: "y2" },
      { name: "", kind: "ticks", x: failed.map(({ size }) => size), y: [], colour: bad },
      ...(search?.best != null && search.best !== used?.size ? [rule(search.best, words.recommendedMark, found)] : []),
      ...(used ? [rule(used.size, used.size === search?.best ? words.recommendedInUse : words.inUseMark, chosen)] : []),
    ];
  }

  /** The memory limit, where it is near enough to be drawn. */
  private get limit(): number | null {
    const limit = this.store.state.room?.bytes ?? 0;
    const peak = Math.max(...this.trials.map((trial) => trial.peak ?? 0), 0);
    return limit > 0 && limit < IN_SIGHT * peak ? limit : null;
  }

  private reach(): [number, number] {
    const sizes = this.trials.map((trial) => trial.size);
    return sizes.length ? [Math.min(...sizes) / 1.4, Math.max(...sizes) * 1.4] : [1, 2];
  }

  /** Sizes on the axis: those that were tried, as many as have room; those that the plot marks and the largest one go first. */
  private numbers(): number[] {
    const { search, chosen } = this.store.state;
    const [from, to] = this.reach().map(Math.log) as [number, number];
    const wide = (this.frame.plot?.bbox.width ?? 0) / devicePixelRatio; // its element still has the former width while it is resized
    const across = (wide || NARROW) / (to - from);
    const apart = (a: number, b: number) => Math.abs(Math.log(a / b)) * across > (DIGIT * (String(a).length + String(b).length)) / 2 + GAP;
    const sizes = this.trials.map(({ size }) => size);
    const marked = [search?.best, chosen?.size].filter((size): size is number => sizes.includes(size ?? NaN));
    const out: number[] = [];
    for (const size of [...marked, ...sizes.slice(-1), ...sizes]) if (out.every((other) => apart(size, other))) out.push(size);
    return out.sort((a, b) => a - b);
  }

  private read(hovered: number | null): void {
    const trial = hovered === null ? undefined : this.trials[hovered];
    const within = trial?.rate_within == null ? "" : words.within(Math.round(100 * trial.rate_within));
    this.card.setValue(words.speed, trial?.rate == null ? "" : pace(trial.rate) + within);
    this.card.setValue(words.memory, trial?.peak == null ? "" : bytes(trial.peak));
    this.card.setAt(trial ? words.at(name(trial), updates(trial)) : "");
  }

  private take(trial: Trial): HTMLElement {
    const used = this.inUse(trial);
    const followed = this.store.state.followed === true; // of another process there is nothing here to set
    return this.kept(name(trial), [trial, used, followed], () => {
      const each = updates(trial);
      const about = texts.list([trial.rate_words && words.speedOf(trial.rate_words), trial.peak_words, each].filter(Boolean));
      const item = el(followed ? "span" : "button", "wb-tool wb-take-it", "", followed ? {} : {
        type: "button", "aria-pressed": String(used), "data-key": name(trial), title: about,
        "aria-label": texts.list([used ? words.inUse(name(trial)) : texts.use(name(trial)), each].filter(Boolean)),
      });
      item.append(el("b", "", name(trial)), el("small", "", trial.updates === null ? "" : String(trial.updates)));
      if (!followed) item.addEventListener("click", () => { if (!used) this.use(trial); });
      return item;
    });
  }

  /** The line made before, if nothing about it has changed. */
  private kept(key: string, about: unknown, make: (before: HTMLElement | null) => HTMLElement): HTMLElement {
    const of = JSON.stringify(about);
    const known = this.lines.get(key);
    if (known?.of === of) return known.line;
    const line = make(known?.line ?? null);
    this.lines.set(key, { of, line });
    return line;
  }

  /** Lines that stay are left where they are, so that the focus and what is unfolded stay too. */
  private arrange(host: HTMLElement, lines: HTMLElement[]): void {
    const within = focusIn(host);
    lines.forEach((line, i) => {
      if (host.children[i] !== line) host.insertBefore(line, host.children[i] ?? null);
    });
    while (host.children.length > lines.length) host.lastElementChild?.remove();
    host.hidden = lines.length === 0;
    if (!within || host.contains(within)) return;
    const key = within.dataset["key"];
    host.querySelector<HTMLElement>(`[data-key="${CSS.escape(key ?? "")}"]`)?.focus();
  }

  private inUse(trial: Trial): boolean {
    const { chosen } = this.store.state;
    return chosen?.size === trial.size && (trial.batches === null || chosen.batches === trial.batches);
  }

  private use(trial: Trial): void {
    const batches = trial.batches === null ? {} : { batches: trial.batches };
    this.store.request("use_batch_size", { value: trial.size, ...batches });
  }

  /** What is kept free. */
  private left(trial: Trial | undefined): string {
    const { room } = this.store.state;
    if (!room) return "";
    const limit = words.room(room.words);
    if (!trial?.peak || trial.peak > room.bytes) return limit;
    return `${limit} ${words.leavesFree(name(trial), share(1 - trial.peak / room.bytes))}`;
  }
}

/** How many updates an epoch has with this size; "" where nobody knows. */
function updates({ updates: count }: Trial): string {
  return count === null ? "" : texts.updatesPerEpoch(count);
}

function share(fraction: number): string {
  return fraction > 0.995 ? words.nearlyAll : texts.percent(Math.round(100 * fraction));
}
