// Finds the benches that the kernel of a notebook has. Which bench belongs to a run is decided there, never by what a record says.

import type { Kernel } from "@jupyterlab/services";
import { ask } from "./kernel";

export interface Bench {
  /** The variable that it is assigned to. */
  name: string;
  /** The key of the folder that it keeps its runs in, as in the server's addresses. */
  root: string;
}

const FIND = `
import hashlib, os, sys
kind = getattr(sys.modules.get("workbench"), "Workbench", ())
found = {id(value): (name, value) for name, value in reversed(list(user.items())) if not name.startswith("_") and isinstance(value, kind)}
answer = [
    {"name": name, "root": hashlib.sha256(os.path.realpath(bench.root).encode()).hexdigest()[:12]}
    for name, bench in reversed(found.values())
]`;

const EXPORT = `
import os
notebook = os.environ.get("JPY_SESSION_NAME", "")
beside = os.path.dirname(notebook) if os.path.isabs(notebook) else os.getcwd()
path = os.path.abspath(user[given["bench"]].export(given["path"], given["run"]))
answer = {"path": path, "beside": os.path.relpath(path, beside).replace(os.sep, "/")}`;

/** The benches of a kernel, in the order in which they were made. */
export function benchesOf(kernel: Kernel.IKernelConnection): Promise<Bench[]> {
  return ask<Bench[]>(kernel, FIND);
}

/** Where a file lies: on the kernel's disk, and seen from the notebook's folder. */
export interface Written {
  path: string;
  beside: string;
}

/** Write the script of a run by a bench of this kernel. */
export function exportBy(kernel: Kernel.IKernelConnection, bench: string, run: string, path: string): Promise<Written> {
  return ask<Written>(kernel, EXPORT, { bench, run, path });
}

/** A line that was written for a bench named `bench`, for one of another name. */
export function forBench(code: string, name: string): string {
  return code.replaceAll(/^bench\b/gm, name);
}
