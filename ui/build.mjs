// Builds the console into dist, which is checked in and embedded in the program: `node build.mjs`. With `--check` it changes
// nothing and fails if dist is not what the sources give.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { gunzipSync, gzipSync } from "node:zlib";

const here = new URL(".", import.meta.url);
const at = (path) => new URL(path, here);

// The licences of what is bundled ask for this in each copy.
const licence = (name) => readFileSync(at(`node_modules/${name}/LICENSE`), "utf8").trim();
const notice = `/*! This file contains Preact and uPlot.\n\n${["preact", "uplot"].map((name) => `${name}: ${licence(name)}`).join("\n\n")}\n*/`;

const bundled = await build({
  absWorkingDir: here.pathname,
  entryPoints: { console: "src/main.tsx" },
  outdir: "dist",
  bundle: true,
  minify: true,
  write: false,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  banner: { js: notice },
  charset: "utf8",
  logLevel: "warning",
});
const files = new Map(bundled.outputFiles.map((file) => [file.path.split("/").pop(), Buffer.from(file.contents)]));
for (const name of ["index.html", "icon.svg"]) files.set(name, readFileSync(at(`src/${name}`)));

const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** Every file that the bundle is made of. */
function sources() {
  const inFolder = (folder) =>
    readdirSync(at(folder), { withFileTypes: true }).flatMap((entry) =>
      entry.isDirectory() ? inFolder(`${folder}/${entry.name}`) : [`${folder}/${entry.name}`],
    );
  return ["build.mjs", "package-lock.json", "package.json", "tsconfig.json", "types.mjs", ...inFolder("src")].sort();
}

const isCheck = process.argv.includes("--check");
const faults = [];
let total = 0;
mkdirSync(at("dist"), { recursive: true });
for (const [name, bytes] of files) {
  const path = at(`dist/${name}.gz`);
  const packed = gzipSync(bytes, { level: 9 });
  // The byte for the operating system differs between machines.
  packed[9] = 255;
  total += packed.length;
  console.log(`${name}: ${bytes.length} bytes, ${packed.length} compressed`);
  if (isCheck) {
    const built = gunzipSync(readFileSync(path));
    if (!built.equals(bytes)) faults.push(`dist/${name}.gz is not what the sources give`);
  } else {
    writeFileSync(path, packed);
  }
}
console.log(`${total} bytes compressed in all`);

// In the form of sha256sum, so a test needs no Node.
const list = [...sources(), ...[...files.keys()].sort().map((name) => `dist/${name}.gz`)];
const sums = () => list.map((path) => `${sha256(readFileSync(at(path)))}  ${path}\n`).join("");
if (isCheck) {
  if (readFileSync(at("dist/SHA256SUMS"), "utf8") !== sums()) faults.push("dist/SHA256SUMS is not that of these files");
} else {
  writeFileSync(at("dist/SHA256SUMS"), sums());
}
for (const fault of faults) console.error(fault);
if (faults.length > 0) {
  console.error("Run `make ui`, and commit ui/dist.");
  process.exit(1);
}
