// Takes the place of modules of Node that sentencepiece imports, and that it
// does not use in a browser.
export {};
