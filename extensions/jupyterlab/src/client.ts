// What the plugins share: the client of the server, and what the server says by itself, heard once for the whole page.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ITranslator, nullTranslator } from "@jupyterlab/translation";
import { Token } from "@lumino/coreutils";
import { Signal } from "@lumino/signaling";
import { Api, ApiError } from "./api";
import { Connection } from "./connection";
import { isLive, keyOf, readEvent } from "./messages";
import type { Event, Ref, Row } from "./messages";
import { DOMAIN, textsOf } from "./texts";

/** "absent": this Jupyter server does not have our part of it. */
export type Link = "connecting" | "open" | "lost" | "absent";

/** A server without our part is asked again after this time, then after twice that, and so on. */
const ABSENT_MS = 15_000, ABSENT_LONGEST_MS = 600_000;
/** So long after the server was silent about a run that should be live, it is asked. */
const DOUBT_MS = 2000;

export class Client {
  readonly events = new Signal<this, Event>(this);
  readonly linked = new Signal<this, Link>(this);
  /** The runs that are not over, by `keyOf`. */
  readonly live = new Map<string, Row>();
  /** Runs that were live when they were last heard of, and may be over or deleted. */
  private readonly doubtful = new Map<string, Ref>();
  /** Runs whose end was found by asking: when the server tells it, too, it is no news. */
  private readonly told = new Set<string>();
  private doubts: ReturnType<typeof setTimeout> | undefined;
  private connection: Connection | null = null;
  private state: Link = "connecting";
  private absences = 0;
  private again: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly api: Api,
    private readonly open: (url: string) => WebSocket,
  ) {}

  get link(): Link {
    return this.state;
  }

  /** Ask whether the server has our part before a websocket tries again and again. */
  async start(): Promise<void> {
    clearTimeout(this.again);
    this.again = undefined;
    try {
      await this.api.templates();
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        this.again = setTimeout(() => void this.start(), Math.min(ABSENT_LONGEST_MS, ABSENT_MS * 2 ** this.absences++));
        return this.set("absent");
      }
    }
    this.connection ??= new Connection(() => this.api.socketUrl("api/events"), {
      opened: () => {
        this.doubt(this.live);
        this.live.clear();
        this.set("open");
      },
      heard: (data) => this.hear(data as string),
      lost: () => this.set("lost"),
    }, this.open);
  }

  /** Try now to open the connection that was lost. */
  retry(): void {
    if (this.again !== undefined) void this.start();
    this.connection?.retry();
  }

  /** Whoever changed or deleted a run says so, so that no list waits for the server to notice. */
  changed(): void {
    this.events.emit({ type: "list" });
  }

  private hear(text: string): void {
    const event = readEvent(text);
    if (event === null) return;
    if (event.type === "list") this.doubt(this.live); // one may have been deleted
    for (const row of rowsOf(event)) this.take(row);
    if (event.type === "ended" && this.told.delete(keyOf(event.row))) return;
    this.events.emit(event);
  }

  private take(row: Row): void {
    const key = keyOf(row);
    this.doubtful.delete(key);
    if (!isLive(row)) {
      this.live.delete(key);
      return;
    }
    this.live.set(key, row);
    this.told.delete(key);
  }

  /** Ask about these runs soon, unless the server tells of them before: it does not tell who was not connected when a run ended. */
  private doubt(runs: Iterable<[string, Ref]>): void {
    for (const [key, { root, run }] of runs) this.doubtful.set(key, { root, run });
    if (this.doubtful.size > 0) this.doubts ??= setTimeout(() => void this.ask(), DOUBT_MS);
  }

  private async ask(): Promise<void> {
    const asked = new Map(this.doubtful);
    for (const [key, ref] of asked) {
      if (this.doubtful.has(key)) await this.askOf(key, ref); // one after the other: there may be many
    }
    this.doubts = undefined;
    if ([...this.doubtful.keys()].some((key) => !asked.has(key))) this.doubt([]);
  }

  private async askOf(key: string, ref: Ref): Promise<void> {
    try {
      const { row } = await this.api.run(ref);
      if (!this.doubtful.has(key)) return; // it was heard of meanwhile
      this.take(row);
      if (!isLive(row)) this.told.add(key);
      this.events.emit(isLive(row) ? { type: "rows", rows: [row] } : { type: "ended", row });
    } catch (error) {
      // Another failure: it stays in doubt until the next list or connection.
      if (!(error instanceof ApiError) || error.status !== 404 || !this.doubtful.delete(key)) return;
      this.live.delete(key);
      this.changed();
    }
  }

  private set(link: Link): void {
    if (link === this.state) return;
    this.state = link;
    this.linked.emit(link);
  }
}

function rowsOf(event: Event): Row[] {
  return event.type === "list" ? [] : event.type === "rows" ? event.rows : [event.row];
}

export const IClient = new Token<Client>("tuning-workbench:IClient", "The client of Tuning Workbench's server.");

export const client: JupyterFrontEndPlugin<Client> = {
  id: "tuning-workbench:client",
  description: "Asks the server about training runs, and hears of their changes.",
  autoStart: true,
  provides: IClient,
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, translator: ITranslator | null) => {
    const { serverSettings } = app.serviceManager;
    const texts = textsOf((translator ?? nullTranslator).load(DOMAIN));
    const made = new Client(new Api(serverSettings, texts), (url) => new serverSettings.WebSocket(url));
    void made.start();
    return made;
  },
};
