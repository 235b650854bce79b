// Translates the lines of its input with the built page, in a browser that
// shows nothing; with `--scores`, each hypothesis has its score before it:
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

/** Has the page do a task; an error has its message alone. */
async function ask(page, task, argument) {
  try {
    return await page.evaluate(task, argument);
  } catch (error) {
    const [first] = error.message.split("\n");
    throw new Error(first.replace(/^page.evaluate: Error: /, ""));
  }
}

async function main(executablePath, model, withScores) {
  const server = await serve(model);
  const browser = await chromium.launch({
    executablePath,
    args: ["--no-sandbox"], // which containers do not allow
  });
  try {
    const page = await browser.newPage();
    await page.goto(`http://localhost:${server.address().port}/index.html`);
    await ask(page, () => window.loaded);
    const input = await text(process.stdin);
    const lines = input === "" ? [] : input.replace(/\n$/, "").split("\n");
    for (const [index, line] of lines.entries()) {
      const task = (line) => window.translateLine(line);
      const found = await ask(page, task, line).catch((error) => {
        throw new Error(`Line ${index + 1}: ${error.message}`);
      });
      for (const [k, translation] of found.translations.entries()) {
        const value = found.scores[k];  // of what was not found: -Infinity
        const score = Number.isFinite(value) ? value.toFixed(4) : "-inf";
        // A vocabulary with bytes can spell what separates lines and columns.
        if (withScores) console.log(`${score}\t${translation.replace(/[\n\r\t]/g, " ")}`);
        else console.log(translation.replace(/[\n\r]/g, " "));
      }
    }
  } finally {
    await browser.close();
    server.close();
  }
}

const [browser, model, option] = process.argv.slice(2);
const withScores = option === "--scores";
if (!model || process.argv.length > (withScores ? 5 : 4)) {
  console.error(
    "Usage: node translate.js BROWSER MODEL.tflite [--scores] < LINES",
  );
  process.exit(2);
}
try {
  await main(browser, model, withScores);
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
