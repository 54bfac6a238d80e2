// Asks a kernel for something, without a trace in the notebook or in the names that the user has.

import type { Kernel } from "@jupyterlab/services";
import type { ReadonlyJSONObject } from "@lumino/coreutils";

const JSON_TYPE = "application/json";

/** An error that Python raised: its type and message. */
export class KernelError extends Error {}

/**
 * Execute Python and return what it assigns to `answer`. `user` has the names of the notebook, `given` has the values.
 * The kernel does it after the cells that run now. KernelError: what Python raised.
 */
export async function ask<T>(kernel: Kernel.IKernelConnection, source: string, given: ReadonlyJSONObject = {}): Promise<T> {
  const shown = `__import__("IPython").display.display({${literal(JSON_TYPE)}: answer}, raw=True)`;
  const values = `{"user": globals(), "given": __import__("json").loads(${literal(JSON.stringify(given))})}`;
  const code = `exec(${literal(`${source}\n${shown}`)}, ${values})`;
  const future = kernel.requestExecute({ code, silent: true, store_history: false, allow_stdin: false, stop_on_error: false });
  let answer: T | undefined;
  future.onIOPub = ({ header, content }) => {
    if (header.msg_type === "display_data") answer ??= (content as { data: Record<string, unknown> }).data[JSON_TYPE] as T | undefined;
  };
  const { content } = await future.done;
  if (content.status === "error") throw new KernelError(`${content.ename}: ${content.evalue}`);
  if (answer === undefined) throw new KernelError(content.status);
  return answer;
}

/** What a promise brings; undefined: it has brought nothing within so many milliseconds, as where a kernel is busy with a cell. */
export function within<T>(promise: Promise<T>, milliseconds: number): Promise<T | undefined> {
  let timer = 0;
  const late = new Promise<undefined>((done) => {
    timer = window.setTimeout(done, milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** A literal of JSON is one of Python, too. */
function literal(text: string): string {
  return JSON.stringify(text);
}
