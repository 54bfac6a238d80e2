// Loads the canvas of the notebook (live.js and live.css) from the server, once for the page.

import type { AnyModel } from "../../../live/src/data/anywidget";
import type { Api } from "../api";

/** An anywidget module, as far as it is used. */
export interface LiveModule {
  default(): { initialize(options: { model: AnyModel }): void; render(options: { model: AnyModel; el: HTMLElement }): () => void };
}

let loading: Promise<LiveModule> | null = null;
let tries = 0;

/** The canvas's module; a failure is not kept, so that the next pane tries again. */
export function liveBundle(api: Api): Promise<LiveModule> {
  loading ??= load(api.url("static")).catch((error: unknown) => {
    loading = null;
    throw error;
  });
  return loading;
}

async function load(folder: string): Promise<LiveModule> {
  const again = tries === 0 ? "" : `?try=${tries}`; // a browser remembers that a module could not be loaded, by its address
  tries += 1;
  const [module] = await Promise.all([
    import(/* webpackIgnore: true */ `${folder}/live.js${again}`) as Promise<LiveModule>,
    style(`${folder}/live.css${again}`),
  ]);
  return module;
}

function style(address: string): Promise<void> {
  const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: address });
  return new Promise((done, failed) => {
    link.onload = () => done();
    link.onerror = () => {
      link.remove();
      failed(new Error(address));
    };
    document.head.append(link);
  });
}
