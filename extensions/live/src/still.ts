// Draws a run or a study in a page without a kernel and without a server: all messages lie in the page (workbench/ui/page.py).

import type { AnyModel } from "./data/anywidget";
import type { Draw } from "./data/messages";
import { Store } from "./data/store";
import { showStudy } from "./study/show";
import { show } from "./view";

interface Packet {
  content: Draw;
  /** In base64. */
  buffers: string[];
}

interface Data {
  packets: Packet[];
  /** The tab of the drawer that is open at first. */
  tab: string;
  /** What the page is of. */
  subject: "bench" | "study";
}

/** Draw the run, or the study, of this page: its data lies in the element "data", and it is drawn in "run". */
export function showStill(): void {
  const data = JSON.parse(document.getElementById("data")!.textContent) as Data;
  const [store, place] = [new Store(new StillModel(data)), document.getElementById("run")!];
  if (data.subject === "study") showStudy(store, place);
  else show(store, place);
}

/** To the canvas this is a widget's model. It sends all that it has when it is asked; what else is asked for is nobody's to do. */
class StillModel implements AnyModel {
  private readonly listeners = new Map<string, Set<(...args: any[]) => void>>();
  /** A run that is over has no learning rate and no clip value to drag: 0 is "no line". */
  private readonly traits: Record<string, unknown>;

  constructor(private readonly data: Data) {
    this.traits = { marker: 0, clip: 0, looks: { drawer: data.tab } };
  }

  get(name: string): unknown {
    return this.traits[name];
  }

  set(name: string, value: unknown): void {
    this.traits[name] = value;
    this.tell(`change:${name}`);
  }

  save_changes(): void {}

  send(content: unknown): void {
    if ((content as { type?: string }).type !== "ready") return;
    for (const { content: message, buffers } of this.data.packets) this.tell("msg:custom", message, buffers.map(bytes));
  }

  on(event: string, callback: (...args: any[]) => void): void {
    const known = this.listeners.get(event) ?? new Set();
    this.listeners.set(event, known.add(callback));
  }

  off(event: string, callback?: (...args: any[]) => void): void {
    if (callback === undefined) this.listeners.delete(event);
    else this.listeners.get(event)?.delete(callback);
  }

  private tell(event: string, ...args: unknown[]): void {
    for (const callback of [...(this.listeners.get(event) ?? [])]) callback(...args);
  }
}

function bytes(text: string): DataView {
  return new DataView(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
}
