// Runs the unit tests (tests/*.test.ts) by node's own runner; esbuild joins each with what it imports.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const folder = fileURLToPath(new URL(".", import.meta.url));
const names = readdirSync(`${folder}/tests`).filter((name) => name.endsWith(".test.ts"));
await build({
  absWorkingDir: folder,
  entryPoints: names.map((name) => `tests/${name}`),
  outdir: "lib/tests",
  outExtension: { ".js": ".cjs" },
  bundle: true,
  platform: "node",
  format: "cjs",
  loader: { ".svg": "text" },
  logLevel: "warning",
});
const built = names.map((name) => `lib/tests/${name.replace(/\.ts$/, ".cjs")}`);
process.exit(spawnSync(process.execPath, ["--test", ...built], { cwd: folder, stdio: "inherit" }).status ?? 1);
