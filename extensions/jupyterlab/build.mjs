// Builds the JupyterLab extension: esbuild joins the sources into lib/index.js, and JupyterLab's own builder makes a prebuilt extension of it.
// What it imports (dependencies in package.json) is JupyterLab's at run time: none of it is in the bundle.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const folder = fileURLToPath(new URL(".", import.meta.url));
const described = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
const output = `${folder}/${described.jupyterlab.outputDir}`;

await build({
  absWorkingDir: folder,
  entryPoints: ["src/index.ts"],
  outfile: "lib/index.js",
  bundle: true,
  packages: "external",
  format: "esm",
  target: "es2022",
  loader: { ".svg": "text" },
  logLevel: "warning",
});

// The builder wants JupyterLab's package.json, to see which packages it shares. Ours names those that we import, each from the oldest
// version that we support on: with that of the newest JupyterLab, the extension would refuse older ones.
const core = `${folder}/node_modules/.core`;
mkdirSync(core, { recursive: true });
const shared = { dependencies: described.dependencies, jupyterlab: { singletonPackages: Object.keys(described.dependencies) } };
writeFileSync(`${core}/package.json`, JSON.stringify(shared));
const builder = `${folder}/node_modules/@jupyterlab/builder/lib/build-labextension.js`;
execFileSync(process.execPath, [builder, "--core-path", core, folder], { cwd: folder, stdio: "inherit" });

// What JupyterLab's extension manager shows: the version of the Python package, and that pip installed it.
const built = JSON.parse(readFileSync(`${output}/package.json`, "utf8"));
const source = readFileSync(`${folder}/../../workbench/_version.py`, "utf8");
const { name, description, license, keywords, jupyterlab } = built;
const version = source.match(/__version__ = "(.+)"/)[1];
writeFileSync(`${output}/package.json`, JSON.stringify({ name, version, description, license, keywords, jupyterlab }, null, 2));
const installed = { packageManager: "python", packageName: name, uninstallInstructions: `pip uninstall ${name}` };
writeFileSync(`${output}/install.json`, JSON.stringify(installed, null, 2));
