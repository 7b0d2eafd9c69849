// Tests of the console in Chromium, against a mock of an agent: `make ui-test`. Options: names of tests, and `--shots DIR` for
// pictures of every page. CHROMIUM names the browser.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { Mock, TOKEN } from "./mock.mjs";

const args = process.argv.slice(2);
const shotsAt = args.indexOf("--shots");
const shots = shotsAt >= 0 ? args.splice(shotsAt, 2)[1] : null;
const wanted = args;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
const PAGES = {
  overview: "#/overview",
  topology: "#/topology",
  resources: "#/resources",
  resource: "#/resources/db",
  services: "#/services",
  service: "#/services/db",
  failovers: "#/failovers",
  reports: "#/reports",
  "reports-compared": "#/reports?span=8h&compare=b:friday",
  nodes: "#/nodes",
  node: "#/nodes/n2",
  events: "#/events",
  "create-resource": "#/create-resource",
  "create-service": "#/create-service",
};

/** A page of the console with a token. Errors of its scripts and broken rules of its policy fail the test. */
async function visit(mock, { hash = "#/overview", width = 1280, scheme = "light", hasToken = true } = {}) {
  // The policy forbids axe and the like to be added to the page, so they come from outside: `evaluate` does.
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(String(error.stack ?? error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !/Failed to load resource|net::ERR/.test(message.text())) page.faults.push(message.text());
  });
  if (hasToken) await page.addInitScript((token) => sessionStorage.setItem("mainstay-token", token), TOKEN);
  await page.goto(mock.url + hash);
  await page.waitForSelector("h1");
  return page;
}

/** Ends a visit. */
async function end(page) {
  const { faults } = page;
  await page.context().close();
  assert.deepEqual(faults, [], "the page has no errors");
}

async function accessible(page, what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const words = violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
  assert.deepEqual(words, [], `${what}: no violation of axe`);
}

/** Nothing is wider than the page. */
async function fits(page, what) {
  const wider = await page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    return [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > width + 1 && !one.closest(".table, pre, svg")).map((one) => one.outerHTML.slice(0, 120));
  });
  assert.deepEqual(wider, [], `${what} fits its width`);
}

/** The longest part of a plot's width without any pixel of its third line, which is drawn over the others. */
function longestGap(plot) {
  return plot.locator("canvas").evaluate((canvas) => {
    const wanted = getComputedStyle(document.documentElement).getPropertyValue("--line-3").trim();
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const near = (one, other) => Math.abs(one - other) < 40;
    const has = (x) => {
      for (let y = 0; y < height; y += 1) {
        const at = 4 * (y * width + x);
        if (data[at + 3] > 100 && near(data[at], red) && near(data[at + 1], green) && near(data[at + 2], blue)) return true;
      }
      return false;
    };
    const columns = Array.from({ length: width }, (_none, x) => has(x));
    const [first, last] = [columns.indexOf(true), columns.lastIndexOf(true)];
    let [longest, run] = [0, 0];
    for (let x = first; x <= last; x += 1) {
      run = columns[x] ? 0 : run + 1;
      longest = Math.max(longest, run);
    }
    return longest / (last - first);
  });
}

const tests = {
  async a_visitor_without_a_token_sees_how_to_make_one_and_a_wrong_one_is_told() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { hasToken: false });
    await page.getByText("mainstay token create console --scope operate").waitFor();
    await accessible(page, "login");
    await page.getByLabel("Token", { exact: true }).fill("mst_api_wrong");
    await page.getByRole("button", { name: "Open" }).click();
    await page.getByText("the cluster does not know this token").waitFor();
    await page.getByLabel("Token", { exact: true }).fill(TOKEN);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "All is well" }).waitFor();
    assert.equal(await page.evaluate(() => Object.keys(localStorage).join()), "");
    await page.getByRole("button", { name: "Leave" }).click();
    await page.getByLabel("Token", { exact: true }).waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.getItem("mainstay-token")), null);
    await end(page);
    mock.stop();
  },

  async every_page_is_whole_in_every_state_in_both_schemes_and_at_both_widths() {
    const faults = [];
    const look = (check) => check.catch((error) => faults.push(error.message.replace(/\n\+ actual - expected\n/, "").slice(0, 900)));
    for (const scenario of ["healthy", "degraded", "empty", "unconfirmed"]) {
      const mock = await new Mock().start(scenario);
      for (const [scheme, width] of [
        ["light", 1280],
        ["dark", 380],
        ["dark", 1280],
        ["light", 380],
      ]) {
        const page = await visit(mock, { scheme, width });
        for (const [name, hash] of Object.entries(PAGES)) {
          await page.goto(mock.url + hash);
          await page.locator("main h1").waitFor();
          await page.waitForFunction(() => !document.querySelector("main")?.textContent?.includes("Loading…"));
          if (name === "resource" && scenario !== "empty") await page.waitForTimeout(4_600);
          const what = `${scenario} ${name} ${scheme} ${width}`;
          await look(fits(page, what));
          await look(accessible(page, what));
          if (shots) {
            mkdirSync(shots, { recursive: true });
            await page.screenshot({ path: `${shots}/${scenario}-${name}-${scheme}-${width}.png`, fullPage: true });
          }
        }
        await end(page);
      }
      mock.stop();
    }
    assert.deepEqual(faults, [], faults.join("\n"));
  },

  async a_change_shows_at_once_by_the_stream_and_by_long_polls() {
    for (const hasStream of [true, false]) {
      const mock = new Mock();
      mock.hasStream = hasStream;
      await mock.start("healthy");
      const page = await visit(mock);
      await page.getByRole("heading", { name: "All is well" }).waitFor();
      await page.waitForTimeout(500);
      mock.status = (await import("./fixtures.mjs")).SCENARIOS.degraded();
      mock.happen("critical", "node/n3", "the power of n3 was cut");
      const began = Date.now();
      await page.getByRole("heading", { name: "4 things need attention" }).waitFor();
      await page.locator("td.text", { hasText: "the power of n3 was cut" }).waitFor();
      console.log(`  a change showed after ${Date.now() - began} ms ${hasStream ? "by the stream" : "by long polls"}`);
      await end(page);
      mock.stop();
    }
  },

  async a_lost_connection_is_told_with_its_time_and_the_page_recovers_by_itself() {
    for (const mode of ["closed", "silent"]) {
      const mock = await new Mock().start("healthy");
      const page = await visit(mock);
      await page.getByText("● live").waitFor();
      await page.waitForTimeout(600);
      mock.break(mode);
      const began = Date.now();
      await page.getByText(/Connection lost since \d\d:\d\d:\d\d/).waitFor({ timeout: 12_000 });
      console.log(`  a connection that was ${mode} was told after ${Date.now() - began} ms`);
      assert.match(await page.locator(".banner").innerText(), /What you see is from \d\d:\d\d:\d\d/);
      await accessible(page, "lost");
      if (shots) await page.screenshot({ path: `${shots}/lost-${mode}.png` });
      await page.goto(`${mock.url}#/resources/db`);
      assert.equal(await page.getByRole("button", { name: /Take snapshot/ }).getAttribute("aria-disabled"), "true");
      mock.break("ok");
      await page.getByText("● live").waitFor({ timeout: 20_000 });
      assert.equal(await page.locator(".banner").count(), 0);
      await end(page);
      mock.stop();
    }
  },

  async a_thousand_resources_are_quick() {
    const mock = await new Mock().start("many");
    const page = await visit(mock, { hash: "#/resources" });
    await page.getByText("1,000 resources found").waitFor();
    // Of a page that was never seen: files, state and the first rows.
    const times = [];
    for (let turn = 0; turn < 5; turn += 1) {
      const fresh = await visit(mock, { hash: "#/resources" });
      await fresh.getByText("1,000 resources found").waitFor();
      times.push(await fresh.evaluate(() => performance.now()));
      await end(fresh);
    }
    times.sort((a, b) => a - b);
    console.log(`  a list of 1,000 resources showed ${Math.round(times[2])} ms after the navigation began (median of 5)`);
    const began = Date.now();
    await page.getByLabel("Name, node or service").fill("db-0777");
    await page.getByText("1 resource found").waitFor();
    console.log(`  a filter took ${Date.now() - began} ms`);
    await page.getByLabel("Name, node or service").fill("");
    await page.getByLabel("Health").selectOption("degraded");
    await page.getByText("11 resources found").waitFor();
    for (const hash of ["#/overview", "#/topology", "#/nodes/n1", "#/services"]) {
      await page.goto(mock.url + hash);
      await page.locator("main h1").waitFor();
      await accessible(page, `many ${hash}`);
    }
    if (shots) await page.screenshot({ path: `${shots}/many-services.png` });
    await page.goto(`${mock.url}#/reports`);
    const asked = Date.now();
    await page.getByText("20 of 1000 are shown.").waitFor();
    await page.locator("figure canvas").nth(3).waitFor();
    console.log(`  a report of 1,000 resources showed after ${Date.now() - asked} ms`);
    await page.getByLabel(/^Of/).selectOption("*");
    await page.getByRole("heading", { name: "All resources over time" }).waitFor();
    await accessible(page, "many reports");
    if (shots) await page.screenshot({ path: `${shots}/many-reports.png`, fullPage: true });
    await page.goto(`${mock.url}#/services?state=failed`);
    await page.getByText("No service is like that.").waitFor();
    await end(page);
    mock.stop();
  },

  async an_idle_page_asks_seldom_and_a_hidden_one_not_at_all() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock);
    await page.waitForTimeout(2_000);
    const before = mock.requests;
    await page.waitForTimeout(10_000);
    console.log(`  an idle overview sent ${mock.requests - before} requests in 10 s`);
    assert.equal(await page.locator(".banner").count(), 0);
    assert.ok(mock.requests - before <= 8, `${mock.requests - before}`);
    await end(page);
    mock.stop();
  },

  async each_change_is_confirmed_with_its_cost_and_sends_one_request() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { hash: "#/services/db" });
    const order = async (button, confirm, costs) => {
      await page.getByRole("button", { name: button, exact: true }).first().click();
      const dialog = page.getByRole("dialog");
      await dialog.getByText(costs).first().waitFor();
      await dialog.getByText("mainstay ").first().waitFor();
      await accessible(page, `dialog ${button}`);
      await dialog.getByRole("button", { name: confirm, exact: true }).click();
      await dialog.waitFor({ state: "detached" });
      await page.getByRole("status").filter({ hasText: "asked:" }).waitFor();
      await page.getByRole("button", { name: "Close" }).click();
    };
    await order("Move", "Move", "Clients lose their connections");
    await order("Restart", "Restart", "Clients lose their connections");
    await order("Stop", "Stop", "It stays stopped");
    await order("Begin maintenance", "Begin maintenance", "Nothing fails over");
    await page.goto(`${mock.url}#/resources/db`);
    await order("Take snapshot", "Take snapshot", "as after a power cut");
    await order("Roll back", "Roll back", "A further snapshot keeps it");
    await order("Delete", "Delete snapshot", "This cannot be undone");
    await order("Compare replicas", "Compare replicas", "Each replica reads all its data once");
    await page.goto(`${mock.url}#/resources/spare`);
    await order("Move primary", "Move primary", "No acknowledged write is lost");
    await page.goto(`${mock.url}#/nodes/n2`);
    await order("Drain", "Drain", "one interruption each");
    await order("Cordon", "Cordon", "What is there stays");
    assert.deepEqual(
      mock.changes.map(({ method, path }) => `${method} ${path}`),
      [
        "POST /v1/services/db/move",
        "POST /v1/services/db/restart",
        "PUT /v1/services/db/wanted",
        "PUT /v1/services/db/maintenance",
        "POST /v1/resources/db/snapshots",
        "POST /v1/resources/db/snapshots/before-upgrade/rollback",
        "DELETE /v1/resources/db/snapshots/before-upgrade",
        "POST /v1/resources/db/scrub",
        "POST /v1/resources/spare/move",
        "PUT /v1/nodes/n2/cordon",
        "PUT /v1/nodes/n2/cordon",
      ],
    );
    await end(page);
    mock.stop();
  },

  async a_dialog_is_left_by_the_keyboard_and_nothing_is_sent() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { hash: "#/services/db" });
    await page.getByRole("button", { name: "Stop", exact: true }).focus();
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Stop");
    assert.deepEqual(mock.changes, []);
    await page.keyboard.press("Control+Home");
    await page.locator("body").focus();
    await end(page);
    mock.stop();
  },

  async a_refusal_shows_its_message_and_its_remedy() {
    const mock = await new Mock().start("healthy");
    mock.refusals.set("POST /v1/services/db/move", [409, "not-eligible", "service db is not moved: n2 is not in sync", "Wait until it is: `mainstay resource status db`."]);
    const page = await visit(mock, { hash: "#/services/db" });
    await page.getByRole("button", { name: "Move", exact: true }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Move", exact: true }).click();
    const box = page.getByRole("dialog").getByRole("alert");
    await box.getByText("n2 is not in sync").waitFor();
    await box.getByText("Wait until it is").waitFor();
    await box.getByText("not-eligible").waitFor();
    await accessible(page, "refusal");
    if (shots) await page.screenshot({ path: `${shots}/dialog-refused.png` });
    await end(page);
    mock.stop();
  },

  async a_token_with_a_lesser_right_sees_what_it_may_not_do() {
    const mock = new Mock();
    mock.access = "read";
    await mock.start("healthy");
    const page = await visit(mock, { hash: "#/services/db" });
    const stop = page.getByRole("button", { name: /^Stop/ });
    await stop.waitFor();
    await page.waitForFunction(() => document.body.textContent.includes("token console: read"));
    assert.equal(await stop.getAttribute("aria-disabled"), "true");
    await stop.click({ force: true });
    assert.equal(await page.getByRole("dialog").count(), 0);
    await page.getByText("The output needs a token with the right operate.").waitFor();
    await accessible(page, "read only");
    await end(page);
    mock.stop();
  },

  async a_revoked_token_ends_the_page() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock);
    await page.getByRole("heading", { name: "All is well" }).waitFor();
    mock.refusals.set("GET /v1/status", [401, "unauthenticated", "the cluster does not know this token; it may have been revoked", "Make another one."]);
    await page.getByLabel("Token", { exact: true }).waitFor({ timeout: 15_000 });
    await page.getByText("it may have been revoked").waitFor();
    assert.equal(await page.evaluate(() => document.body.textContent.includes("n1")), false);
    await end(page);
    mock.stop();
  },

  async a_resource_and_a_service_are_created_step_by_step() {
    const mock = await new Mock().start("empty");
    const page = await visit(mock, { hash: "#/create-resource" });
    await page.getByLabel(/^Name/).fill("db");
    await page.getByLabel(/^Size of each volume/).fill("10 parsecs");
    await page.getByText("is no size").waitFor();
    assert.equal(await page.getByRole("button", { name: "Create", exact: true }).isDisabled(), true);
    await page.getByLabel(/^Size of each volume/).fill("10GiB 2GiB");
    await page.getByText("mainstay resource create db --size 10GiB --size 2GiB --replica-count 3").waitFor();
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await page.getByRole("heading", { name: "db", exact: true }).waitFor();
    assert.deepEqual(mock.changes[0].body.volumes, [10 * 2 ** 30, 2 * 2 ** 30]);
    await page.goto(`${mock.url}#/create-service`);
    await page.getByRole("button", { name: "Check it on all nodes" }).click();
    await page.getByText("there is no user mysql on n2").waitFor();
    await page.getByText("The running service stops, and starts with the new file.").waitFor();
    await accessible(page, "checked");
    if (shots) await page.screenshot({ path: `${shots}/service-checked.png`, fullPage: true });
    await page.getByRole("button", { name: "Apply" }).click();
    await page.getByRole("heading", { name: "db", exact: true }).waitFor();
    assert.deepEqual(
      mock.changes.slice(1).map(({ method, path, body }) => `${method} ${path} ${body.dry_run}`),
      ["PUT /v1/services true", "PUT /v1/services false"],
    );
    await end(page);
    mock.stop();
  },

  async a_report_shows_what_the_command_says_and_which_command_that_is() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { hash: "#/reports" });
    const first = page.locator("section", { hasText: "What stands out" }).locator("li").first();
    await first.getByText(/The journal of n3 took 94 % of the waiting of db between/).waitFor();
    const command = page.locator(".command code").first();
    const last = () => mock.asked.at(-1).searchParams;
    assert.equal(await command.innerText(), "mainstay report --last 1h");
    assert.equal(Number(last().get("to_ms")) - Number(last().get("from_ms")), 3_600_000);
    await page.getByLabel(/^Time/).selectOption("1d");
    await page.getByLabel("Compare with").selectOption("before");
    await page.getByRole("heading", { name: "Compared with an earlier time" }).waitFor();
    assert.equal(await command.innerText(), "mainstay report --last 1d --compare");
    assert.equal(Number(last().get("from_ms")) - Number(last().get("compare_from_ms")), 86_400_000);
    await page.getByLabel(/^Time/).selectOption("own");
    await page.getByLabel("From (UTC)").fill("2026-11-29T14:00");
    await page.getByLabel("To (UTC)").fill("2026-11-29T14:00");
    await page.getByText("The end has to be at least a minute after the begin.").waitFor();
    await page.getByLabel("To (UTC)").fill("2026-11-29T16:00");
    await page.getByLabel("Compare with").selectOption("week");
    await page.getByText("2026-11-29 14:00 to 2026-11-29 16:00 (2 h)").waitFor();
    assert.equal(await command.innerText(), "mainstay report --from 2026-11-29T14:00 --to 2026-11-29T16:00 --compare 2026-11-22T14:00");
    assert.equal(Number(last().get("from_ms")), Date.UTC(2026, 10, 29, 14));
    await page.getByLabel("Compare with").selectOption("own");
    await page.getByLabel("Begin of that (UTC)").fill("2026-11-20T09:30");
    await page.locator(".command code", { hasText: "--compare 2026-11-20T09:30" }).waitFor();
    // The choice is in the address.
    await page.reload();
    await page.locator(".command code", { hasText: "--from 2026-11-29T14:00 --to 2026-11-29T16:00 --compare 2026-11-20T09:30" }).waitFor();
    await end(page);
    mock.stop();
  },

  async a_report_has_plots_of_each_resource_and_of_all() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { hash: "#/reports" });
    const over = (name) => page.locator("section", { has: page.getByRole("heading", { name }) });
    await over("Resource db over time").locator("figure").nth(3).waitFor();
    const titles = await over("Resource db over time").locator("figcaption").allInnerTexts();
    assert.deepEqual(titles.slice(0, 4), ["Requests per second", "Throughput", "Latency that 50, 95 and 99 % did not exceed", "Waiting requests, by what they waited for"]);
    // The areas of the stack have their shares, which are those of the whole time.
    const legend = await over("Resource db over time").locator("figure").nth(3).locator("li").allInnerTexts();
    assert.match(legend[0].trim(), /^journal of n3: \d+ %$/);
    const shares = legend.map((text) => Number(/(\d+) %$/.exec(text)[1]));
    assert.ok(Math.abs(shares.reduce((sum, one) => sum + one, 0) - 100) <= 3, legend.join());
    await page.getByLabel(/^Of/).selectOption("mail");
    await page.getByRole("heading", { name: "Resource mail over time" }).waitFor();
    await page.getByLabel(/^Of/).selectOption("*");
    await over("All resources over time").getByText("known of single resources only").waitFor();
    await accessible(page, "all resources");
    await end(page);
    mock.stop();
  },

  async a_baseline_is_kept_compared_with_shown_and_deleted() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { hash: "#/reports?span=own&from=1764424800000&to=1764428400000" });
    await page.getByRole("button", { name: "Keep this time as a baseline" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel(/^Name/).fill("1st");
    await dialog.getByRole("button", { name: "Keep", exact: true }).click();
    assert.equal(mock.changes.length, 0, "a name that is none is not sent");
    await dialog.getByLabel(/^Name/).fill("calm");
    await dialog.getByText("mainstay report baseline save calm --from 2025-11-29T14:00 --to 2025-11-29T15:00").waitFor();
    await accessible(page, "dialog of a baseline");
    await dialog.getByRole("button", { name: "Keep", exact: true }).click();
    const row = page.locator("tr", { hasText: "calm" });
    await row.getByRole("button", { name: "Compare with it" }).click();
    await page.getByRole("heading", { name: "Compared with the baseline calm" }).waitFor();
    await page.locator(".command code", { hasText: "--compare calm" }).first().waitFor();
    await row.getByRole("button", { name: "Show" }).click();
    await page.locator(".command code", { hasText: "mainstay report --baseline calm" }).first().waitFor();
    await page.getByText("Baseline calm: Cluster prod, 2025-11-29 14:00").waitFor();
    assert.equal(await page.getByRole("button", { name: "Keep this time as a baseline" }).count(), 0);
    await row.getByRole("button", { name: "Delete" }).click();
    await dialog.getByText("cannot be undone").waitFor();
    await dialog.getByRole("button", { name: "Delete baseline" }).click();
    await row.waitFor({ state: "detached" });
    assert.deepEqual(
      mock.changes.map(({ method, path, body }) => [method, path, body]),
      [
        ["PUT", "/v1/baselines/calm", { from_ms: 1764424800000, to_ms: 1764428400000 }],
        ["DELETE", "/v1/baselines/calm", {}],
      ],
    );
    await page.goto(`${mock.url}#/reports?baseline=none`);
    await page.getByText("there is no such baseline").waitFor();
    await end(page);
    mock.stop();
  },

  async a_report_is_downloaded_as_one_page_that_needs_no_other_file() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { hash: "#/reports" });
    await page.locator("figure canvas").nth(5).waitFor();
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download", exact: true }).click()]);
    assert.match(download.suggestedFilename(), /^report-\d{4}-\d\d-\d\d-\d\d-\d\d-to-.*\.html$/);
    const text = readFileSync(await download.path(), "utf8");
    assert.doesNotMatch(text, /<script|<canvas|<select|href=|src="(?!data:image)/);
    const [json] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download JSON" }).click()]);
    assert.equal(JSON.parse(readFileSync(await json.path(), "utf8")).cluster, "prod");
    const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, offline: true });
    const file = await context.newPage();
    await file.setContent(text);
    await file.getByRole("heading", { name: "What stands out" }).waitFor();
    const pictures = await file.locator("figure img").evaluateAll((all) => all.map((one) => one.naturalWidth));
    assert.ok(pictures.length >= 5 && pictures.every((width) => width > 100), String(pictures));
    await accessible(file, "the downloaded page");
    if (shots) await file.screenshot({ path: `${shots}/report-downloaded.png`, fullPage: true });
    await context.close();
    if (shots) {
      await page.emulateMedia({ media: "print" });
      await page.screenshot({ path: `${shots}/report-printed.png`, fullPage: true });
    }
    await end(page);
    mock.stop();
  },

  async a_report_that_cannot_be_had_says_why_and_the_page_stays() {
    const mock = await new Mock().start("healthy");
    mock.refusals.set("GET /v1/report", [503, "no-majority", "no majority of the nodes can be reached", "Bring nodes back."]);
    const page = await visit(mock, { hash: "#/reports" });
    await page.getByRole("alert").filter({ hasText: "no majority of the nodes can be reached" }).waitFor();
    await page.getByRole("button", { name: "Download", exact: true }).isDisabled();
    await accessible(page, "refused report");
    mock.refusals.clear();
    await page.getByRole("button", { name: "Load again" }).click();
    await page.getByText(/The journal of n3 took/).waitFor();
    mock.break("closed");
    await page.getByText(/Connection lost since/).waitFor({ timeout: 12_000 });
    assert.equal(await page.getByText(/The journal of n3 took/).count(), 1);
    await accessible(page, "lost report");
    if (shots) await page.screenshot({ path: `${shots}/report-lost.png` });
    await end(page);
    mock.stop();
  },

  async a_resource_shows_its_last_hour_at_once_and_a_gap_where_nothing_is_recorded() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { hash: "#/resources/db" });
    const began = Date.now();
    const plot = page.locator("figure", { hasText: "Requests per second" });
    await plot.locator("canvas").waitFor();
    console.log(`  the last hour showed after ${Date.now() - began} ms`);
    await plot.getByText(/write: [\d,]+/).waitFor();
    await page.getByText(/Nothing is recorded from \d\d:\d\d:\d\d to \d\d:\d\d:\d\d/).waitFor();
    const gap = await longestGap(plot);
    assert.ok(gap > 6 / 60 && gap < 9 / 60, `7 of 60 minutes are a gap: ${gap}`);
    // The measurements go on from there.
    await page.waitForTimeout(5_000);
    assert.ok((await longestGap(plot)) < 9 / 60, "the page goes on where the record ends");
    const span = () => {
      const words = mock.asked.at(-1).searchParams;
      assert.equal(words.get("resources"), "db");
      return [Number(words.get("to_ms")) - Number(words.get("from_ms")), Number(words.get("step_ms"))];
    };
    assert.deepEqual(span(), [3_600_000, 60_000]);
    assert.deepEqual([...new Set(mock.asked.map((one) => one.searchParams.get("node")))].sort(), ["n1", "n2", "n3"]);
    for (const [word, expected] of [["8h", [8 * 3_600_000, 120_000]], ["1d", [86_400_000, 360_000]], ["8d", [8 * 86_400_000, 2_880_000]]]) {
      await page.getByLabel(/^Time/).selectOption(word);
      await page.waitForTimeout(400);
      await plot.locator("canvas").waitFor();
      assert.deepEqual(span(), expected);
      if (shots) await page.screenshot({ path: `${shots}/resource-${word}.png`, fullPage: true });
    }
    // The record of the nodes begins five days ago.
    await page.getByText(/Nothing is recorded from \d{4}-/).waitFor();
    await end(page);
    mock.stop();
  },

  async a_node_that_does_not_tell_its_record_is_named_and_costs_its_own_part() {
    const mock = await new Mock().start("healthy");
    mock.refusals.set("GET /v1/load n3", [503, "node-unreachable", "node n3 does not answer", ""]);
    const page = await visit(mock, { hash: "#/resources/db" });
    await page.getByText("No record came from n3: node n3 does not answer").waitFor();
    await page.locator("figure", { hasText: "Requests per second" }).waitFor();
    await accessible(page, "a record with a part missing");
    mock.refusals.set("GET /v1/load", [503, "history-files", "the history cannot be read", "Look at the disk."]);
    mock.refusals.delete("GET /v1/load n3");
    await page.getByLabel(/^Time/).selectOption("8h");
    await page.getByRole("alert").filter({ hasText: "the history cannot be read" }).waitFor();
    await end(page);
    mock.stop();
  },

  async the_scheme_is_the_machine_s_until_a_person_chooses() {
    const mock = await new Mock().start("healthy");
    const page = await visit(mock, { scheme: "dark" });
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    assert.equal(await theme(), "dark");
    await page.getByLabel("Colours").selectOption("light");
    assert.equal(await theme(), "light");
    await page.reload();
    await page.waitForSelector("h1");
    assert.equal(await theme(), "light");
    await page.getByLabel("Colours").selectOption("auto");
    await page.emulateMedia({ colorScheme: "dark" });
    await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
    await page.emulateMedia({ colorScheme: "light" });
    await page.waitForFunction(() => document.documentElement.dataset.theme === "light");
    await end(page);
    mock.stop();
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  if (wanted.length > 0 && !wanted.some((word) => name.includes(word))) continue;
  const began = Date.now();
  try {
    await test();
    console.log(`ok ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}\n${error.stack ?? error}`);
  }
}
await browser.close();
process.exit(failed === 0 ? 0 : 1);
