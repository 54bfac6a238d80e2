// Builds the panel's front end: one ESM module and one style sheet with everything in them, since relative imports do not work inside
// an anywidget module. Both begin with the licences of the packages whose code they contain; THIRD-PARTY-NOTICES.txt has them, too.
import { build } from "esbuild";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = new URL(".", import.meta.url);
const folder = fileURLToPath(here);
const outdir = fileURLToPath(new URL("../../workbench/ui/static/", here));

const options = {
  absWorkingDir: folder,
  outdir,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "inline",
  metafile: true,
};

// The folders of the packages that have a part in a file that is written.
function packagesOf(metafile) {
  const inputs = Object.values(metafile.outputs).flatMap((output) => Object.keys(output.inputs));
  const homes = inputs.map((path) => path.match(/^(?:\(disabled\):)?(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//)?.[1]);
  return [...new Set(homes.filter(Boolean))].sort();
}

function noticeOf(home) {
  const { name, version, license, homepage } = JSON.parse(readFileSync(`${folder}/${home}/package.json`, "utf8"));
  const head = [`${name} ${version}`, license, homepage].filter(Boolean).join(", ");
  return `${head}\n\n${licenceOf(home, name).trim()}\n`;
}

function licenceOf(home, name) {
  const file = readdirSync(`${folder}/${home}`).find((entry) => /^licen[cs]e/i.test(entry));
  if (file === undefined) throw new Error(`${name} is in the bundle and has no licence file`);
  return readFileSync(`${folder}/${home}/${file}`, "utf8");
}

const entryPoints = { live: "src/index.ts" };
const { metafile } = await build({ ...options, entryPoints, write: false, logLevel: "error" });
const notices = packagesOf(metafile).map(noticeOf).join(`\n${"-".repeat(80)}\n\n`);
const banner = `/*!\n${notices.replaceAll("*/", "* /")}*/`;
await build({ ...options, entryPoints, banner: { js: banner, css: banner }, logLevel: "info" });
writeFileSync(`${outdir}/THIRD-PARTY-NOTICES.txt`, `live.js and .css contain code of these packages.\n\n${notices}`);
