// One ESM module and one style sheet, both whole: relative imports do not work inside an anywidget module.
// The licences of the packages whose code is in them stand at their head, and in a file beside them.
import { build } from "esbuild";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = new URL(".", import.meta.url);
const folder = fileURLToPath(here);
const outdir = fileURLToPath(new URL("../../workbench/ui/static/", here));

const options = {
  absWorkingDir: folder,
  entryPoints: { live: "src/index.ts" },
  outdir,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "inline",
  metafile: true,
};

// Which packages have a part in a file that is written.
function packagesOf(metafile) {
  const inputs = Object.values(metafile.outputs).flatMap((output) => Object.keys(output.inputs));
  const names = inputs.map((path) => path.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1]);
  return [...new Set(names.filter(Boolean))].sort();
}

function noticeOf(name) {
  const home = `${folder}/node_modules/${name}`;
  const { version, license, homepage } = JSON.parse(readFileSync(`${home}/package.json`, "utf8"));
  const file = readdirSync(home).find((entry) => /^licen[cs]e/i.test(entry));
  if (file === undefined) throw new Error(`${name} is in the bundle and has no licence file`);
  const head = [`${name} ${version}`, license, homepage].filter(Boolean).join(", ");
  return `${head}\n\n${readFileSync(`${home}/${file}`, "utf8").trim()}\n`;
}

const { metafile } = await build({ ...options, write: false, logLevel: "error" });
const notices = packagesOf(metafile).map(noticeOf).join(`\n${"-".repeat(80)}\n\n`);
const banner = `/*!\n${notices.replaceAll("*/", "* /")}*/`;

await build({ ...options, banner: { js: banner, css: banner }, logLevel: "info" });
writeFileSync(
  `${outdir}/THIRD-PARTY-NOTICES.txt`,
  `The live canvas (live.js, live.css) contains code of these packages.\n\n${notices}`,
);
