// A manager of ipywidgets within one anywidget. Each of its models is a model of the page's own front end, which has the connection to
// Python: the protocol of Jupyter's widgets is translated to anywidget's, both ways.

import * as base from "@jupyter-widgets/base";
import * as controls from "@jupyter-widgets/controls";
import { ManagerBase } from "@jupyter-widgets/base-manager";
import { MessageLoop } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";
import type { AnyModel } from "../data/anywidget";
import { texts } from "../texts";
import { CanvasModel, CanvasView } from "./canvas";

const REFERENCE = "IPY_MODEL_";
const MODULES: Record<string, Record<string, unknown>> = {
  "@jupyter-widgets/base": base as unknown as Record<string, unknown>,
  "@jupyter-widgets/controls": controls as unknown as Record<string, unknown>,
  anywidget: { AnyModel: CanvasModel, AnyView: CanvasView }, // the panel has one anywidget, and this bundle has its module
};

export class EmbeddedManager extends ManagerBase {
  private readonly adopted = new Map<string, Promise<base.WidgetModel>>();
  private readonly comms: Comm[] = [];

  constructor(private readonly outer: AnyModel) {
    super();
  }

  /** Show a widget, given by its reference, in an element of the page. Returns what removes it. */
  async show(reference: string, host: HTMLElement): Promise<() => void> {
    const view = await this.create_view(await this.get_model(reference.replace(REFERENCE, "")));
    const shown = view.luminoWidget;
    MessageLoop.sendMessage(shown, Widget.Msg.BeforeAttach);
    host.append(shown.node);
    MessageLoop.sendMessage(shown, Widget.Msg.AfterAttach);
    const resized = new ResizeObserver(() => MessageLoop.postMessage(shown, Widget.ResizeMessage.UnknownSize));
    resized.observe(host);
    return () => {
      resized.disconnect();
      view.remove();
      this.comms.forEach((comm) => comm.forget());
    };
  }

  override get_model(id: string): Promise<base.WidgetModel> {
    let model = this.adopted.get(id);
    if (model === undefined) {
      model = this.adopt(id);
      this.adopted.set(id, model);
    }
    return model;
  }

  protected override async loadClass(name: string, module: string): Promise<any> {
    const found = MODULES[module]?.[name];
    if (found === undefined) throw new Error(texts.embedded.unknownClass(`${module}: ${name}`));
    return found;
  }

  protected override async _create_comm(): Promise<base.IClassicComm> {
    throw new Error(texts.embedded.noComm);
  }

  protected override async _get_comm_info(): Promise<Record<string, never>> {
    return {};
  }

  private async adopt(id: string): Promise<base.WidgetModel> {
    const remote = await this.outer.widget_manager!.get_model(id);
    const text = (name: string) => remote.get(name) as string;
    const names = (this.outer.get("names") as Record<string, string[]>)[text("_model_name")];
    if (names === undefined) throw new Error(texts.embedded.unknownModel(text("_model_name")));
    const comm = new Comm(id, remote, names);
    this.comms.push(comm);
    const options = { model_name: text("_model_name"), model_module: text("_model_module"), model_module_version: text("_model_module_version"), comm };
    return this.new_model(options, Object.fromEntries(names.map((name) => [name, remote.get(name)])) as any);
  }
}

type Message = { content: { data: Record<string, unknown> }; buffers: readonly DataView[] };

/** The connection of one model, in the words of Jupyter's comms. */
export class Comm implements base.IClassicComm {
  readonly target_name = "jupyter.widget";
  private hear: (message: Message) => void = (message) => this.early.push(message);
  private early: Message[] = [];
  private sending = false;
  private readonly listeners: [string, (...args: any[]) => void][] = [];

  constructor(readonly comm_id: string, readonly remote: AnyModel, names: readonly string[]) {
    for (const name of names) {
      this.listen(`change:${name}`, () => {
        if (!this.sending) this.tell({ method: "update", state: { [name]: remote.get(name) }, buffer_paths: [] });
      });
    }
    this.listen("msg:custom", (content: unknown, buffers: readonly DataView[]) => this.tell({ method: "custom", content }, buffers));
  }

  /** Hear no more of the page's model, which may live longer than what is shown of it. */
  forget(): void {
    for (const [event, hear] of this.listeners.splice(0)) this.remote.off(event, hear);
  }

  private listen(event: string, hear: (...args: any[]) => void): void {
    this.remote.on(event, hear);
    this.listeners.push([event, hear]);
  }

  send(data: any, callbacks?: base.ICallbacks): string {
    if (data.method === "custom") {
      this.remote.send(data.content);
    } else {
      this.sending = true; // a front end reports to its listeners what it is given, too
      for (const [name, value] of Object.entries(data.state)) this.remote.set(name, value);
      this.sending = false;
      this.remote.save_changes();
    }
    queueMicrotask(() => callbacks?.iopub?.["status"]?.({ content: { execution_state: "idle" } } as any)); // the next may be sent
    return "";
  }

  on_msg(hear: (message: Message) => void): void {
    this.hear = hear;
    this.early.splice(0).forEach(hear);
  }

  on_close(): void {}

  open(): string {
    return "";
  }

  /** The model is Python's to close. */
  close(): string {
    return "";
  }

  private tell(data: Record<string, unknown>, buffers: readonly DataView[] = []): void {
    this.hear({ content: { data }, buffers });
  }
}
