// Translates the lines of its input with the built page, in a browser that
// shows nothing:
//
//   node translate.js /usr/bin/chromium model.tflite < test.en > test.out

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { text } from "node:stream/consumers";
import { chromium } from "playwright-core";

const DIST = join(import.meta.dirname, "dist");
const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".wasm": "application/wasm",
};

/** Serves the built page, and the model beside it, on a free port. */
async function serve(model) {
  const server = createServer(async ({ url }, response) => {
    const { pathname } = new URL(url, "http://localhost");
    const file = pathname === "/model.tflite" ? model : join(DIST, pathname);
    try {
      const content = await readFile(file);
      response.setHeader("Content-Type", TYPES[extname(file)] ?? "");
      response.end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "localhost", resolve));
  return server;
}

async function main(executablePath, model) {
  const server = await serve(model);
  const browser = await chromium.launch({
    executablePath,
    args: ["--no-sandbox"], // which containers do not allow
  });
  try {
    const page = await browser.newPage();
    await page.goto(`http://localhost:${server.address().port}/index.html`);
    await page.evaluate(() => window.loaded);
    const input = await text(process.stdin);
    for (const line of input.replace(/\n$/, "").split("\n")) {
      const translate = (line) => window.translateLine(line);
      const { translations } = await page.evaluate(translate, line);
      console.log(translations[0]);
    }
  } finally {
    await browser.close();
    server.close();
  }
}

if (process.argv.length !== 4) {
  console.error("Usage: node translate.js BROWSER MODEL.tflite < LINES");
  process.exit(2);
}
try {
  await main(...process.argv.slice(2));
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
