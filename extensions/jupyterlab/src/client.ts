// What the plugins share: the client of the server, and what the server says by itself, heard once for the whole page.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Token } from "@lumino/coreutils";
import { Signal } from "@lumino/signaling";
import { Api, ApiError } from "./api";
import { Connection } from "./connection";
import { isLive, keyOf, readEvent } from "./messages";
import type { Event, Row } from "./messages";

/** "absent": this Jupyter server does not have our part of it. */
export type Link = "connecting" | "open" | "lost" | "absent";

export class Client {
  readonly events = new Signal<this, Event>(this);
  readonly linked = new Signal<this, Link>(this);
  /** The runs that are not over, by `keyOf`. */
  readonly live = new Map<string, Row>();
  private connection: Connection | null = null;
  private state: Link = "connecting";

  constructor(
    readonly api: Api,
    private readonly open: (url: string) => WebSocket,
  ) {}

  get link(): Link {
    return this.state;
  }

  /** Ask whether the server has our part before a websocket tries again and again. */
  async start(): Promise<void> {
    try {
      await this.api.templates();
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return this.set("absent");
    }
    this.connection = new Connection(() => this.api.socketUrl("api/events"), {
      opened: () => {
        this.live.clear();
        this.set("open");
      },
      heard: (data) => this.hear(data as string),
      lost: () => this.set("lost"),
    }, this.open);
  }

  /** Try now to open the connection that was lost. */
  retry(): void {
    this.connection?.retry();
  }

  /** Whoever changed or deleted a run says so, so that no list waits for the server to notice. */
  changed(): void {
    this.events.emit({ type: "list" });
  }

  private hear(text: string): void {
    const event = readEvent(text);
    if (event === null) return;
    for (const row of rowsOf(event)) {
      if (isLive(row)) this.live.set(keyOf(row), row);
      else this.live.delete(keyOf(row));
    }
    this.events.emit(event);
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
  activate: (app: JupyterFrontEnd) => {
    const { serverSettings } = app.serviceManager;
    const made = new Client(new Api(serverSettings), (url) => new serverSettings.WebSocket(url));
    void made.start();
    return made;
  },
};
