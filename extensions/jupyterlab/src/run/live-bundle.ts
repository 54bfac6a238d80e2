// Loads the canvas of the notebook (live.js and live.css) from the server, once for the page.

import type { AnyModel } from "../../../live/src/data/anywidget";
import type { Api } from "../api";

/** The members of an anywidget module that the pane uses. */
export interface LiveModule {
  default(): { initialize(options: { model: AnyModel }): void; render(options: { model: AnyModel; el: HTMLElement }): () => void };
}

let loading: Promise<LiveModule> | null = null;

/** The canvas's module; a failure is not kept, so that the next pane tries again. */
export function liveBundle(api: Api): Promise<LiveModule> {
  loading ??= load(api).catch((error: unknown) => {
    loading = null;
    throw error;
  });
  return loading;
}

/**
 * The files are fetched as text. An import or a link of their addresses could carry neither a token nor a header, and a server may want
 * them: a JupyterHub refuses scripts that come without its XSRF token.
 */
async function load(api: Api): Promise<LiveModule> {
  const [code, rules] = await Promise.all([api.file("live.js"), api.file("live.css")]);
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  try {
    const module = (await import(/* webpackIgnore: true */ address)) as LiveModule;
    const style = document.createElement("style");
    style.textContent = rules;
    document.head.append(style);
    return module;
  } finally {
    URL.revokeObjectURL(address);
  }
}
