// Runs a translator beside the page, which stays quick meanwhile.

import { Translator } from "./translator.js";

let translator = null;

const TASKS = {
  async load(model) {
    const start = performance.now();
    translator = await Translator.load(model, "./");
    const seconds = (performance.now() - start) / 1000;
    return { sourceLength: translator.sourceLength, seconds };
  },
  async translate(text) {
    const start = performance.now();
    const found = await translator.translate(text);
    return { ...found, seconds: (performance.now() - start) / 1000 };
  },
};

self.onmessage = async ({ data: { number, task, argument } }) => {
  try {
    self.postMessage({ number, result: await TASKS[task](argument) });
  } catch (error) {
    self.postMessage({ number, error: error?.message ?? String(error) });
  }
};
