// The types of anywidget's model, as far as they are used (https://anywidget.dev/en/afm/).

export interface AnyModel {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, callback: (...args: any[]) => void): void;
  off(event: string, callback?: (...args: any[]) => void): void;
  /** JupyterLab's and Notebook's has the kernel that the model lives in; others need not. All find other models by their ids. */
  widget_manager?: { kernel?: Kernel | null; get_model(id: string): Promise<AnyModel> };
}

interface Signal {
  connect(callback: (sender: unknown, value: any) => void): void;
  disconnect(callback: (sender: unknown, value: any) => void): void;
}

export interface Kernel {
  statusChanged?: Signal;
  disposed?: Signal;
}
