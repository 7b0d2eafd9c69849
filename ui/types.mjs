// Writes src/types.ts from docs/http-api.md, which is made of the sources of the program. So the console has no second
// description of the API. Types are written there as in Rust.
import { readFileSync, writeFileSync } from "node:fs";

const here = new URL(".", import.meta.url);
const page = readFileSync(new URL("../docs/http-api.md", here), "utf8");

// Enums that the page names and does not describe: they are words.
const known = new Set([...page.matchAll(/^### (\w+)$/gm)].map((match) => match[1]));

/** A type of Rust as one of TypeScript. */
function translate(rust) {
  const text = rust.trim();
  const inner = (name) => (text.startsWith(name + "<") && text.endsWith(">") ? text.slice(name.length + 1, -1) : null);
  const boxed = inner("Box");
  if (boxed !== null) return translate(boxed);
  const list = inner("Vec");
  if (list !== null) return `${wrapped(translate(list))}[]`;
  const option = inner("Option");
  if (option !== null) return `${translate(option)} | null`;
  const map = inner("BTreeMap");
  if (map !== null) return `Record<string, ${translate(map.slice(map.indexOf(",") + 1))}>`;
  if (text.startsWith("(") && text.endsWith(")")) return `[${text.slice(1, -1).split(",").map(translate).join(", ")}]`;
  if (/^[ui](8|16|32|64)$|^usize$|^f64$/.test(text)) return "number";
  if (text === "bool") return "boolean";
  if (known.has(text)) return text;
  return "string";
}

function wrapped(type) {
  return type.includes("|") ? `(${type})` : type;
}

const out = ["// Made by types.mjs from docs/http-api.md. Do not edit.", ""];
const sections = page.slice(page.indexOf("## Types")).split(/^### /m).slice(1);
for (const section of sections) {
  const name = section.slice(0, section.indexOf("\n")).trim();
  const rows = section.split("\n").filter((line) => line.startsWith("| "));
  const cells = rows.map((row) => row.split(" | ").map((cell) => cell.replace(/^\| ?|\|$/g, "").trim()));
  const [head, ...body] = cells;
  if (!head) continue;
  if (head[0] === "value") {
    const words = body.map(([value]) => value.replace(/`/g, ""));
    // Values of a choice of types have capitals, and are no words.
    const isUntagged = name === "SettingValue";
    out.push(isUntagged ? `export type ${name} = string | number | boolean;` : `export type ${name} = ${words.map((word) => JSON.stringify(dashed(word))).join(" | ")};`, "");
    continue;
  }
  const fields = body.map(([field, type, meaning]) => ({ field: field.replace(/`/g, ""), type: type.replace(/`/g, ""), meaning }));
  const flat = fields.filter(({ field }) => field.startsWith("("));
  const own = fields.filter(({ field }) => !field.startsWith("("));
  const base = flat.length ? ` extends ${flat.map(({ type }) => type).join(", ")}` : "";
  out.push(`export interface ${name}${base} {`);
  for (const { field, type, meaning } of own) {
    if (meaning) out.push(`  /** ${meaning.replace(/\*\//g, "* /")} */`);
    const optional = type.startsWith("Option<") ? "?" : "";
    out.push(`  ${field}${optional}: ${translate(type)};`);
  }
  out.push("}", "");
}

/** `InSync` as `in-sync`, as the JSON has it. */
function dashed(word) {
  return word.replace(/([a-z0-9])([A-Z])/g, "$1-$2").toLowerCase();
}

const path = new URL("src/types.ts", here);
if (!process.argv.includes("--check")) {
  writeFileSync(path, out.join("\n"));
} else if (readFileSync(path, "utf8") !== out.join("\n")) {
  console.error("src/types.ts is not what docs/http-api.md says. Run `make ui`, and commit ui.");
  process.exit(1);
}
