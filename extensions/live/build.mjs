// Builds the live canvas, and the whole panel for front ends that show anywidgets alone. Each is one ESM module and one style sheet with
// everything in them, since relative imports do not work inside an anywidget module. Each begins with the licences of the packages whose
// code it contains; THIRD-PARTY-NOTICES.txt has them, too.
import { build } from "esbuild";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = new URL(".", import.meta.url);
const folder = fileURLToPath(here);
const outdir = fileURLToPath(new URL("../../workbench/ui/static/", here));

// Front ends put the style sheet of an anywidget into a shadow root: what it says of the page's root it says of the panel's.
const panelAsRoot = {
  name: "panel as root",
  setup({ onLoad }) {
    onLoad({ filter: /controls\/css\/.*\.css$/ }, ({ path }) => ({
      contents: readFileSync(path, "utf8").replaceAll(":root", ".wb-embedded"),
      loader: "css",
    }));
  },
};

const options = {
  absWorkingDir: folder,
  plugins: [panelAsRoot],
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
  return `${head}\n\n${licenceOf(home, name, license).trim()}\n`;
}

/** The text in the package; Project Jupyter's packages have it in their repositories alone. */
function licenceOf(home, name, license) {
  const file = readdirSync(`${folder}/${home}`).find((entry) => /^licen[cs]e/i.test(entry));
  if (file !== undefined) return readFileSync(`${folder}/${home}/${file}`, "utf8");
  const project = name.match(/^@(jupyter-widgets|lumino)\//)?.[1];
  if (project === undefined || license !== "BSD-3-Clause") throw new Error(`${name} is in the bundle and has no licence file`);
  return readFileSync(`${folder}/licences/${project}.txt`, "utf8");
}

async function bundle(entryPoints) {
  const { metafile } = await build({ ...options, entryPoints, write: false, logLevel: "error" });
  const notices = packagesOf(metafile).map(noticeOf).join(`\n${"-".repeat(80)}\n\n`);
  const banner = `/*!\n${notices.replaceAll("*/", "* /")}*/`;
  await build({ ...options, entryPoints, banner: { js: banner, css: banner }, logLevel: "info" });
  return `${Object.keys(entryPoints)[0]}.js and .css contain code of these packages.\n\n${notices}`;
}

const notices = [await bundle({ live: "src/index.ts" }), await bundle({ panel: "src/embedded/index.ts" })];
writeFileSync(`${outdir}/THIRD-PARTY-NOTICES.txt`, notices.join(`\n${"=".repeat(80)}\n\n`));
