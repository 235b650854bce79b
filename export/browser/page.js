// The page: takes lines, and shows what the worker makes of each.

const worker = new Worker("worker.js");
const waiting = new Map();
let numAsked = 0;

worker.onmessage = ({ data: { number, result, error } }) => {
  if (failure) return;
  const { resolve, reject } = waiting.get(number);
  waiting.delete(number);
  if (error === undefined) resolve(result);
  else reject(new Error(error));
};

/** What keeps the worker from answering ever again. */
let failure = null;

// The worker sends the errors of its tasks: this is one of its script.
worker.onerror = ({ message }) => {
  failure = new Error(message || "worker.js could not be loaded.");
  for (const { reject } of waiting.values()) reject(failure);
  waiting.clear();
};

/** Has the worker do a task. */
function ask(task, argument) {
  if (failure) return Promise.reject(failure);
  const number = numAsked++;
  return new Promise((resolve, reject) => {
    waiting.set(number, { resolve, reject });
    worker.postMessage({ number, task, argument });
  });
}

const form = document.querySelector("form");
const source = document.querySelector("#source");
const target = document.querySelector("#target");
const button = document.querySelector("button");
const status = document.querySelector("#status");
const progress = document.querySelector("progress");

const address = new URLSearchParams(location.search).get("model");
const model = new URL(address ?? "model.tflite", location.href).href;

// What a program that drives the page calls, too.
window.loaded = ask("load", model);
window.translateLine = (line) => ask("translate", line);

async function translateAll() {
  const lines = source.value.split("\n");
  const start = performance.now();
  button.disabled = true;
  target.replaceChildren();
  progress.hidden = false;
  progress.max = lines.length;
  let failed = 0;
  for (const [index, line] of lines.entries()) {
    progress.value = index;
    const paragraph = document.createElement("p");
    try {
      const { translations } = await window.translateLine(line);
      paragraph.textContent = translations[0];
      paragraph.title = line;
    } catch (error) {
      failed += 1;
      paragraph.textContent = `Line ${index + 1}: ${error.message}`;
      paragraph.className = "error";
    }
    target.append(paragraph);
  }
  progress.hidden = true;
  button.disabled = false;
  const seconds = ((performance.now() - start) / 1000).toFixed(2);
  status.textContent = `${lines.length - failed} of ${lines.length} lines in ${seconds} s.`;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  translateAll();
});

source.addEventListener("keydown", (event) => {
  const isSend = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (isSend && !button.disabled) form.requestSubmit();
});

async function start() {
  try {
    const { sourceLength, seconds } = await window.loaded;
    status.textContent =
      `Ready after ${seconds.toFixed(1)} s. A line may have ` +
      `${sourceLength} tokens. Nothing you write leaves this page.`;
    button.disabled = false;
  } catch (error) {
    status.textContent = error.message;
    status.className = "error";
  }
}

start();
