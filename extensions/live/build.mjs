// One ESM module and one style sheet, both whole: relative imports do not work inside an anywidget module.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

const here = new URL(".", import.meta.url);

await build({
  absWorkingDir: fileURLToPath(here),
  entryPoints: { live: "src/index.ts" },
  outdir: fileURLToPath(new URL("../../workbench/ui/static/", here)),
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "inline",
  logLevel: "info",
});
