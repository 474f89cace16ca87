// Looks at the studio in Firefox; scripts/studio-firefox calls it with the browser, and with the
// addresses of a server and of an exported page.

import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import puppeteer from "puppeteer-core";

const [executablePath, ...addresses] = process.argv.slice(2);
const downloads = fs.mkdtempSync(path.join(os.tmpdir(), "headloom-downloads-"));
const PATIENCE = { timeout: 30_000, polling: 100 };

/** Whether a view is there: none of its parts is busy, and its canvases and drawings have colours. */
const drawn = () => {
  const stage = document.querySelector(".stage");
  if (!stage || stage.getAttribute("aria-busy") === "true") return false;
  const colours = (canvas) =>
    new Set(
      new Uint32Array(
        canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer,
      ),
    ).size;
  const canvases = [...stage.querySelectorAll("canvas")].filter((canvas) => canvas.width > 0);
  const lines = stage.querySelectorAll("svg path, svg circle, svg rect, tbody tr, ol li *").length;
  return canvases.some((canvas) => colours(canvas) > 2) || lines > 5;
};

/** Waits until a file is there and grows no longer; its first bytes. */
async function saved(name) {
  const file = path.join(downloads, name);
  for (let tries = 0, before = -1; tries < 150; tries++) {
    const size = fs.existsSync(file) ? fs.statSync(file).size : -1;
    if (size > 0 && size === before && !fs.existsSync(`${file}.part`)) {
      const begins = fs.readFileSync(file).subarray(0, 8);
      fs.unlinkSync(file);
      return begins;
    }
    before = size;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`${name} was not saved`);
}

async function exported(page, view, kind) {
  await page.keyboard.press("e");
  await page.click(`.export input[value=${kind}]`);
  await page.click(".export .primary");
  const begins = (await saved(`headloom-${view}-175mm.${kind}`)).toString("latin1");
  if (!begins.startsWith(kind === "svg" ? "<svg" : "\x89PNG"))
    throw new Error(`no ${kind}: ${begins}`);
  await page.waitForFunction(() => !document.querySelector("dialog[open]"), PATIENCE);
}

async function look(browser, address) {
  let failures = 0;
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 800 });
  const said = [];
  page.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => said.push(`error: ${error.message}`));
  page.on("requestfailed", (request) => said.push(`failed: ${request.url()}`));
  await page.goto(address);
  await page.waitForSelector("nav a");
  const views = await page.$$eval("nav a", (all) =>
    all.map((a) => [a.hash.slice("#view=".length), a.innerText]),
  );
  for (const [view, title] of views) {
    try {
      await page.click(`nav a[href="#view=${view}"]`);
      await page.waitForFunction(`document.title.startsWith(${JSON.stringify(title)})`, PATIENCE);
      await page.waitForFunction(drawn, PATIENCE);
      await page.keyboard.press("d");
      await page.waitForFunction(drawn, PATIENCE);
      if (view !== "sql") for (const kind of ["svg", "png"]) await exported(page, view, kind);
      await page.keyboard.press("d");
    } catch (error) {
      said.push(error.message);
    }
    const found = said.splice(0);
    failures += found.length;
    console.log(`${address.slice(0, 4)} ${view}: ${found.join("; ") || "drawn, saved"}`);
  }
  await page.close();
  return failures;
}

const browser = await puppeteer.launch({
  browser: "firefox",
  executablePath,
  extraPrefsFirefox: {
    "browser.download.folderList": 2,
    "browser.download.dir": downloads,
    "browser.download.alwaysOpenPanel": false,
  },
});
let failures = 0;
try {
  for (const address of addresses) failures += await look(browser, address);
  const version = await browser.version();
  console.log(
    `${version}: ${failures ? `${failures} failures` : "every view drawn, none complained"}`,
  );
} finally {
  await browser.close();
  fs.rmSync(downloads, { recursive: true });
}
process.exit(failures ? 1 : 0);
