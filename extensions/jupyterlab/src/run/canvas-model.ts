// A model for the canvas over a websocket: the canvas is the notebook's own, and to it this is a widget's model (anywidget.ts).

import type { AnyModel } from "../../../live/src/data/anywidget";
import type { Draw } from "../../../live/src/data/messages";
import type { Connection, Hears } from "../connection";
import type { Ref, StudyRef } from "../messages";

/** How the cards' switches stand, kept beyond the page. */
export interface Looks {
  read(): Record<string, unknown>;
  write(looks: Record<string, unknown>): void;
}

/** What a canvas is of, as the notebook's widget names it. */
export type Subject = "bench" | "study";

/** What it needs of a connection. */
type Line = Pick<Connection, "send" | "retry" | "dispose">;
type Callback = (...args: any[]) => void;

export class CanvasModel implements AnyModel {
  /** Called when the connection opens and when it is lost. */
  onConnected: (connected: boolean) => void = () => {};
  /** Called with the reason why a request of the canvas was not carried out. */
  onRefused: (why: string) => void = () => {};
  private readonly connection: Line;
  private readonly listeners = new Map<string, Set<Callback>>();
  /** A followed run has no learning rate and no clip value to drag: 0 is "no line". */
  private readonly traits: Record<string, unknown>;

  constructor(connect: (hears: Hears) => Line, private readonly looks: Looks, subject: Subject = "bench") {
    this.traits = { marker: 0, clip: 0, subject };
    this.connection = connect({
      // The server has a new canvas for each connection, and sends all of it for "ready".
      opened: () => {
        this.onConnected(true);
        this.send({ type: "ready" });
      },
      heard: (data) => this.hear(data),
      lost: () => this.onConnected(false),
    });
  }

  get(name: string): unknown {
    return name === "looks" ? this.looks.read() : this.traits[name];
  }

  set(name: string, value: unknown): void {
    if (name === "looks") this.looks.write(value as Record<string, unknown>);
    else this.traits[name] = value;
    this.tell(`change:${name}`);
  }

  save_changes(): void {}

  send(content: unknown): void {
    this.connection.send(JSON.stringify(content));
  }

  on(event: string, callback: Callback): void {
    const known = this.listeners.get(event) ?? new Set();
    this.listeners.set(event, known.add(callback));
  }

  off(event: string, callback?: Callback): void {
    if (callback === undefined) this.listeners.delete(event);
    else this.listeners.get(event)?.delete(callback);
  }

  retry(): void {
    this.connection.retry();
  }

  dispose(): void {
    this.listeners.clear();
    this.connection.dispose();
  }

  private hear(data: ArrayBuffer | string): void {
    if (typeof data === "string") {
      const told = JSON.parse(data) as { type?: string; text?: string };
      if (told.type === "refused") this.onRefused(told.text ?? "");
      return;
    }
    const { message, buffers } = readFrame(data);
    this.tell("msg:custom", message, buffers);
  }

  private tell(event: string, ...args: unknown[]): void {
    for (const callback of [...(this.listeners.get(event) ?? [])]) callback(...args);
  }
}

/** A frame of the server: the length of a JSON text (uint32, little-endian), that text, and the buffers whose sizes it has. */
export function readFrame(frame: ArrayBuffer): { message: Draw; buffers: DataView[] } {
  const begins = 4 + new DataView(frame).getUint32(0, true);
  const { sizes, ...message } = JSON.parse(new TextDecoder().decode(new Uint8Array(frame, 4, begins - 4))) as Draw & { sizes: number[] };
  let at = begins;
  const buffers = sizes.map((size) => {
    at += size;
    return new DataView(frame, at - size, size);
  });
  return { message, buffers };
}

/** The address of the canvas of one run, or of several over one another. */
export function canvasPath(refs: Ref[]): string {
  const [first] = refs;
  const query = refs.length === 1 && first ? new URLSearchParams({ root: first.root, run: first.run }) : new URLSearchParams(refs.map(({ root, run }) => ["compare", `${root}/${run}`]));
  return `api/canvas?${query}`;
}

/** The address of the canvas of a study. */
export function studyPath({ root, study }: StudyRef): string {
  return `api/canvas?${new URLSearchParams({ root, study })}`;
}
