// The console against a real cluster of three nodes: `make ui-lab-test`, which tests/lab.sh runs. A story: a resource and a
// service are made step by step, the service's node loses its power, and the service is moved back.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { gunzipSync } from "node:zlib";
import { chromium } from "playwright-core";
import { FILES, POLICY } from "./mock.mjs";

const { BUILT, LAB, TOKEN, BROWSER, SHOTS } = process.env;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const lab = (...words) => execFileSync(`${BUILT}/mainstay-lab`, ["--name", LAB, ...words], { encoding: "utf8" });
const address = (node) => `https://10.213.0.${node}:7404/console/`;

const browser = await chromium.launch({ executablePath: BROWSER, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1280, height: 900 }, reducedMotion: "reduce" });
const page = await context.newPage();
// While you work on the console: the bundle of ui/dist, and not the one of the built program.
if (process.env.FRESH) {
  await context.route("**/console/**", async (route) => {
    const [name, kind] = FILES[new URL(route.request().url()).pathname] ?? FILES["/console/"];
    const body = gunzipSync(readFileSync(new URL(`../dist/${name}.gz`, import.meta.url)));
    await route.fulfill({ body, headers: { "content-type": kind, "content-security-policy": POLICY } });
  });
}
const faults = [];
page.on("pageerror", (error) => faults.push(String(error.stack ?? error)));
page.on("console", (message) => {
  if (message.type() === "error" && !/Failed to load resource|net::ERR/.test(message.text())) faults.push(message.text());
});
page.setDefaultTimeout(30_000);
// A failure shows the page as it was.
process.on("uncaughtException", (error) => {
  console.log(`FAILED ${error.stack ?? error}`);
  const shown = page.locator("body").innerText({ timeout: 20_000 });
  void shown.then((text) => console.log(text.slice(0, 6_000).replace(/\n+/g, " / "))).finally(() => process.exit(1));
});

async function looked(name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  assert.deepEqual(violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)}`), [], `${name}: no violation of axe`);
  if (SHOTS) {
    mkdirSync(SHOTS, { recursive: true });
    await page.screenshot({ path: `${SHOTS}/lab-${name}.png`, fullPage: true });
  }
}
const step = (words) => console.log(`── ${words}`);
const go = async (hash) => {
  await page.goto(address(2) + hash);
  await page.locator("main h1").waitFor();
};

step("the console of n2 opens with a token");
await page.goto(address(2));
await page.getByLabel("Token", { exact: true }).fill("mst_api_wrong");
await page.getByRole("button", { name: "Open" }).click();
await page.getByRole("alert").getByText("token").first().waitFor();
await page.getByLabel("Token", { exact: true }).fill(TOKEN);
await page.getByRole("button", { name: "Open" }).click();
await page.getByRole("heading", { name: /All is well|attention/ }).waitFor();
await page.getByText("token console: admin").waitFor();

step("a resource is made step by step");
await go("#/create-resource");
await page.getByLabel(/^Name/).fill("db");
await page.getByLabel(/^Size of each volume/).fill("1GiB");
for (const node of ["n1", "n2", "n3"]) await page.getByRole("checkbox", { name: new RegExp(`\\b${node}\\b`) }).check();
await page.getByLabel("Preferred primary").selectOption("n1");
await page.getByRole("button", { name: "Create", exact: true }).click();
await page.getByRole("heading", { name: "db", exact: true }).waitFor();
await page.locator(".head .tag", { hasText: "ok" }).waitFor();
await page.getByText("Mean latency of journal and replicas").waitFor();
await looked("resource");

step("a service is checked by all nodes and applied");
await go("#/create-service");
await page.getByLabel("Text").fill('name = "db"\nresource = "db"\n[mount]\npath = "/srv/db"\nmkfs = true\n[[process]]\nname = "main"\ncommand = ["/bin/sh", "-c", "echo the service begins; exec sleep infinity"]\n[vip]\naddress = "10.213.0.100/24"\n');
await page.getByRole("button", { name: "Check it on all nodes" }).click();
await page.getByText("The service is created").waitFor();
assert.equal(await page.locator("table .tag", { hasText: "fits" }).count(), 3);
await looked("service-check");
await page.getByRole("button", { name: "Apply", exact: true }).click();
await page.getByRole("heading", { name: "db", exact: true }).waitFor();
await page.locator(".head .tag", { hasText: "running" }).waitFor();
const facts = (name) => page.locator(".facts > div", { has: page.locator("dt", { hasText: new RegExp(`^${name}$`) }) }).locator("dd");
await page.waitForFunction(() => [...document.querySelectorAll(".facts dd")].some((one) => one.textContent === "n1"));
assert.equal(await facts("Node").first().innerText(), "n1");
await page.locator("section", { hasText: "Output of its processes" }).getByRole("button", { name: "Show" }).click();
await page.getByLabel("Output of main").getByText("the service begins").waitFor();
await looked("service");

step("the node of the service loses its power, and the page shows what happens");
await go("#/overview");
const cut = Date.now();
lab("kill", "n1");
await page.getByText("is dead: it does not answer").first().waitFor();
console.log(`   the overview named the dead node ${Date.now() - cut} ms after the cut`);
await page.getByText("service db runs on", { exact: false }).first().waitFor().catch(() => {});
await go("#/services/db");
await page.locator(".head .tag", { hasText: "running" }).waitFor();
assert.notEqual(await facts("Node").first().innerText(), "n1");
await go("#/overview");
await looked("overview-dead");
await go("#/topology");
await page.locator("svg text", { hasText: "dead" }).waitFor();
await looked("topology-dead");
await go("#/failovers");
await page.getByText("the node died or lost its lease").first().waitFor();
await looked("failovers");

step("the node returns, and the service is moved back");
lab("start", "n1");
await go("#/overview");
await page.getByRole("heading", { name: "All is well" }).waitFor({ timeout: 90_000 });
await go("#/services/db");
await page.getByRole("button", { name: "Move", exact: true }).click();
const dialog = page.getByRole("dialog");
await dialog.getByLabel("To node").selectOption("n1");
await dialog.getByText("the last change of its primary took", { exact: false }).or(dialog.getByText("The last change")).first().waitFor();
await looked("dialog-move");
await dialog.getByRole("button", { name: "Move", exact: true }).click();
await page.waitForFunction(() => [...document.querySelectorAll(".facts div")].some((one) => one.textContent === "Noden1"));
await page.locator(".head .tag", { hasText: "running" }).waitFor();

step("a snapshot is taken, cloned and deleted, and the replicas are compared");
await go("#/resources/db");
await page.getByRole("button", { name: "Take snapshot" }).click();
await dialog.getByLabel(/^Name/).fill("first");
await dialog.getByRole("button", { name: "Take snapshot", exact: true }).click();
await page.getByText("n1: held").waitFor();
await page.getByRole("link", { name: "Clone" }).click();
await page.getByLabel(/^Name/).fill("db-copy");
await page.getByRole("button", { name: "Create", exact: true }).click();
await page.getByRole("heading", { name: "db-copy", exact: true }).waitFor();
await go("#/resources/db");
await page.getByRole("button", { name: "Compare replicas" }).click();
await dialog.getByRole("button", { name: "Compare replicas", exact: true }).click();
await page.getByText("All replicas were equal when they were last compared").waitFor({ timeout: 60_000 });
await looked("resource-compared");

step("nodes are drained and opened, and the audit log says by whom");
await go("#/nodes/n3");
await page.getByRole("button", { name: "Drain", exact: true }).click();
await dialog.getByRole("button", { name: "Drain", exact: true }).click();
await page.getByText(/Drained since/).waitFor();
await page.getByRole("button", { name: "Uncordon", exact: true }).click();
await dialog.getByRole("button", { name: "Uncordon", exact: true }).click();
await page.getByRole("button", { name: "Drain", exact: true }).waitFor();
await looked("node");
await go("#/events");
await page.getByText("PUT /v1/nodes/n3/cordon").first().waitFor();
await page.getByText("token console").first().waitFor();
await looked("events");
await go("#/nodes");
await looked("nodes");

step("the report of the last hour has the nodes and the resource, and its time is kept as a baseline");
await go("#/reports");
// Nodes record each minute, so the first record may not be there yet.
const ofNodes = page.locator("tr", { has: page.getByRole("link", { name: /^n[123]$/ }) });
for (let turn = 0; (await ofNodes.count()) < 3 && turn < 60; turn += 1) {
  await page.waitForTimeout(3_000);
  await page.getByRole("button", { name: "Load again" }).click();
  await page.getByRole("heading", { name: "What stands out" }).waitFor();
}
await page.locator("tr", { hasText: "the node died or lost its lease" }).first().waitFor();
await page.getByRole("button", { name: "Keep this time as a baseline" }).click();
await dialog.getByLabel(/^Name/).fill("story");
await dialog.getByRole("button", { name: "Keep", exact: true }).click();
await page.locator("tr", { hasText: "story" }).getByRole("button", { name: "Compare with it" }).click();
await page.getByRole("heading", { name: "Compared with the baseline story" }).waitFor();
await looked("reports");
await go("#/resources/db");
await page.locator("figure", { hasText: "Requests per second" }).waitFor();
await looked("resource-recorded");

step("the node that serves the page dies: the page says so at once, and another node shows the cluster");
await go("#/overview");
const died = Date.now();
lab("kill", "n2");
await page.getByText(/Connection lost since/).waitFor();
console.log(`   the loss was told ${Date.now() - died} ms after the cut`);
await looked("lost");
await page.goto(address(3));
await page.getByLabel("Token", { exact: true }).fill(TOKEN);
await page.getByRole("button", { name: "Open" }).click();
await page.getByText("is dead: it does not answer").first().waitFor();

step("two nodes of three are gone: the page says that no majority confirms what it shows");
lab("kill", "n1");
await page.getByText("No majority of the nodes confirmed this.").waitFor();
await looked("no-majority");

assert.deepEqual(faults, [], "the page has no errors");
await browser.close();
