// Translates text with a LiteRT file, in a page or in a worker of it.

import { loadAndCompile, loadLiteRt, Tensor } from "@litertjs/core";
import { SentencePieceProcessor } from "@sctg/sentencepiece-js";

const PAD_ID = 0;
const UNKNOWN_ID = 1;
const END_ID = 3;
const SIGNATURES = ["tokenizers", "translate_ids"];
const LEAST_FLOAT32 = -3.4028234663852886e38;

/** LiteRT itself, which is loaded once, however many translators there are. */
let runtime = null;

export class Translator {
  /**
   * Loads a file that `keras-transformer export --source-length` has written.
   *
   * @param {string} model Its address.
   * @param {string} wasm Address of the folder with LiteRT's own files.
   * @returns {Promise<Translator>}
   */
  static async load(model, wasm) {
    runtime ??= loadLiteRt(wasm);
    try {
      await runtime;
    } catch (error) {
      runtime = null; // the next call tries again
      throw error;
    }
    const compiled = await compiledFrom(model);
    const missing = SIGNATURES.filter((name) => !compiled.signatures[name]);
    if (missing.length) throw notOurs(model, `no ${missing.join(", no ")}`);
    const { translate_ids: signature } = compiled.signatures;
    const [{ shape }] = signature.getInputDetails();
    const [rows, sourceLength] = shape;
    if (rows !== 1 || sourceLength < 1) throw notOurs(model, "of any length");
    const score = signature.getOutputDetails().find((x) => x.name === "score");
    const start = new Tensor(new Int32Array(1), [1]);
    const files = await run(compiled, "tokenizers", { start });
    // One model for both sides is one tensor, for which LiteRT has one name.
    const source = files.source_model ?? files.target_model;
    const target = files.target_model ?? files.source_model;
    return new Translator(
      compiled,
      sourceLength,
      await processorOf(source.values),
      await processorOf(target.values),
      files.is_fast.values[0] !== 0,
      score.shape.at(-1), // (1,) or (1, K)
    );
  }

  constructor(compiled, sourceLength, source, target, isFast, numHypotheses) {
    this.compiled = compiled;
    this.sourceLength = sourceLength; // tokens, the end token included
    this.source = source;
    this.target = target;
    this.isFast = isFast; // joined as tensorflow-text does
    this.numHypotheses = numHypotheses;
  }

  /**
   * Translates one text.
   *
   * @param {string} text
   * @returns {Promise<{translations: string[], scores: number[]}>} The
   *   hypotheses of the exported search, best first; scores in nats.
   */
  async translate(text) {
    const pieces = this.source.encodeIds(text);
    if (!pieces.length) return this.ofNothing();
    const length = pieces.length + 1;
    if (length > this.sourceLength) {
      throw new RangeError(
        `A text must not be longer than ${this.sourceLength} tokens. ` +
          `Received: ${length} tokens. Split it into sentences.`,
      );
    }
    const ids = new Int32Array(this.sourceLength).fill(PAD_ID);
    ids.set([...pieces, END_ID]);
    const found = await run(this.compiled, "translate_ids", {
      source_ids: new Tensor(ids, [1, this.sourceLength]),
    });
    const { values, shape } = found.target_ids; // (1, T) or (1, K, T)
    const width = shape.at(-1);
    // LiteRT does not keep infinity, the score of a missing hypothesis.
    const scores = Array.from(found.score.values, (score) =>
      score <= LEAST_FLOAT32 ? -Infinity : score,
    );
    const translations = scores.map((_, k) =>
      this.join(values.subarray(k * width, (k + 1) * width)),
    );
    return { translations, scores };
  }

  /** The translation of no text is none, and there is no second one. */
  ofNothing() {
    const translations = new Array(this.numHypotheses).fill("");
    const scores = new Array(this.numHypotheses).fill(-Infinity);
    scores[0] = 0;
    return { translations, scores };
  }

  /** Makes text of token ids. */
  join(ids) {
    const content = ids.filter((id) => id !== PAD_ID && id !== END_ID);
    if (!this.isFast) return this.target.decodeIds(content);
    // Of the spaces at the start, SentencePiece drops all, or none before an
    // unknown piece; tensorflow-text one. Behind a piece, it keeps them.
    const first = this.target.decodeIds(Int32Array.of(UNKNOWN_ID));
    const text = this.target.decodeIds(Int32Array.of(UNKNOWN_ID, ...content));
    return text.slice(first.length).replace(/^ /, "");
  }
}

async function compiledFrom(address) {
  const response = await fetch(address);
  if (!response.ok) {
    throw new Error(`There is no model at ${address}: ${response.status}.`);
  }
  const content = new Uint8Array(await response.arrayBuffer());
  try {
    return await loadAndCompile(content, { accelerator: "wasm" });
  } catch (error) {
    throw notOurs(address, error.message.replace(/\.$/, ""));
  }
}

function notOurs(address, reason) {
  return new Error(
    "The model must be a LiteRT file that `keras-transformer export " +
      `--source-length\` has written. Received: ${address}, ${reason}.`,
  );
}

/** Runs a signature, and frees the memory of its tensors. */
async function run(compiled, signature, inputs) {
  const tensors = Object.values(inputs);
  try {
    const outputs = await compiled.run(signature, inputs);
    tensors.push(...Object.values(outputs));
    const copied = {};
    for (const [name, tensor] of Object.entries(outputs)) {
      const shape = Array.from(tensor.type.layout.dimensions);
      copied[name] = { values: tensor.toTypedArray().slice(), shape };
    }
    return copied;
  } finally {
    for (const tensor of tensors) tensor.delete();
  }
}

async function processorOf(model) {
  let bytes = "";
  for (const byte of model) bytes += String.fromCharCode(byte);
  const processor = new SentencePieceProcessor();
  await processor.loadFromB64StringModel(btoa(bytes));
  return processor;
}
