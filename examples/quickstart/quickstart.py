"""Trains a translator from English to German and serves it, in minutes.

Generated sentences about dates, times, numbers and prices; the tiny preset;
exact matches on sentences it never saw; a picture of its attention; a
SavedModel with which a new process translates without this library.

The settings were chosen for speed on 2 cores, not tuned for quality.

    python examples/quickstart/quickstart.py
"""

import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import corpus
import keras
import matplotlib  # noqa: F401  # fails now, not after the training
import numpy as np

import keras_transformer as kt
from keras_transformer.tensorflow_only.threads import give_cores_to_parts

OUTPUT = Path("runs/quickstart")
TRAIN_PAIRS = 80_000
HELD_OUT_PAIRS = 1_000
VOCABULARY_SIZE = 1_000
TOKENS_PER_BATCH = 1_024
PEAK_LEARNING_RATE = 3e-3
WARMUP_STEPS = 400
AVERAGE_DECAY = 0.998
SEED = 2  # the settings were chosen with 1
SHOWN = "Forty-seven tourists are waiting outside the bank in Berlin."


def make_tokenizer(pairs, vocabulary_size=VOCABULARY_SIZE):
    """Learns one vocabulary for both languages; each digit is a piece."""
    return kt.Tokenizer.train(
        [text for pair in pairs[:20_000] for text in pair],
        vocabulary_size=vocabulary_size,
        model_type="bpe",
        split_digits=True,
        verbose=0,
    )


def make_model(tokenizer, **overrides):
    """Makes the tiny preset; text that never repeats needs no dropout."""
    model = kt.Transformer.from_preset(
        "tiny",
        tokenizer.vocabulary_size,
        dropout=0.0,
        normalize_first=True,  # learns faster
        **overrides,
    )
    model.compile(
        optimizer=kt.Adam(
            kt.WarmupSchedule(
                peak_learning_rate=PEAK_LEARNING_RATE,
                warmup_steps=WARMUP_STEPS,
            ),
            # `fit` ends by replacing the weights with their moving average.
            use_ema=True,
            ema_momentum=AVERAGE_DECAY,
        ),
        loss=kt.LabelSmoothedCrossentropy(0.1),
        jit_compile=False,  # text has too many lengths
    )
    return model


def train(model, tokenizer, pairs, tokens_per_batch=TOKENS_PER_BATCH):
    """Trains for one pass over the pairs; returns the seconds it took."""
    english, german = zip(*pairs, strict=True)
    batches = kt.translation_dataset(
        list(english),
        list(german),
        tokenizer,
        tokens_per_batch=tokens_per_batch,
        max_length=64,
        seed=SEED,
    )
    start = time.perf_counter()
    model.fit(batches)
    return time.perf_counter() - start


def exact_matches(translator, pairs):
    """Returns the share of exact translations, and the pairs that fail."""
    translations = translator([english for english, _ in pairs])
    wrong = [
        (english, german, translation)
        for (english, german), translation in zip(
            pairs, translations, strict=True
        )
        if translation != german
    ]
    return 1 - len(wrong) / len(pairs), wrong


def draw_attention(translator, text, path):
    """Draws which source pieces each target piece looked at, as a PNG.

    Layers attend in different ways: the one with the clearest attention is
    drawn, as the mean of its heads.
    """
    translations = translator([text])
    alignments = [
        translator.align([text], translations, layer)[0]
        for layer in range(len(translator.model.decoder.layers))
    ]
    clearest = max(
        alignments, key=lambda one: np.mean(np.max(one.weights, axis=1))
    )
    clearest.draw(path)


def elsewhere_program():
    """The path of the program that uses the SavedModel."""
    return os.path.relpath(Path(__file__).with_name("use_saved_model.py"))


def translate_elsewhere(folder, texts):
    """Translates in a process that has only tensorflow and tensorflow-text."""
    process = subprocess.run(
        [sys.executable, elsewhere_program(), str(folder), *texts],
        capture_output=True,
        text=True,
        # On the CPU: this process may hold all memory of a GPU.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    if process.returncode:
        print(process.stderr, file=sys.stderr)
        process.check_returncode()
    return process.stdout.splitlines()


def main():
    """Runs the steps in order."""
    if keras.config.backend() != "tensorflow":
        sys.exit("A SavedModel needs KERAS_BACKEND=tensorflow.")
    keras.utils.set_random_seed(SEED)
    pairs, held_out = corpus.train_and_held_out(
        TRAIN_PAIRS, HELD_OUT_PAIRS, seed=SEED
    )
    print(
        f"1. {len(pairs):,} generated pairs of "
        f"{corpus.count_possible_pairs():,} possible; {len(held_out):,} more "
        "are held out."
    )
    tokenizer = make_tokenizer(pairs)
    model = make_model(tokenizer)
    print(
        f"2. Training the tiny preset, {model.count_params():,} weights, "
        "2 or 3 minutes on 2 cores."
    )
    seconds = train(model, tokenizer, pairs)

    translator = kt.Translator(model, tokenizer)
    share, wrong = exact_matches(translator, held_out)
    print(
        f"3. Trained in {seconds:.0f} s. {share:.1%} of {len(held_out):,} "
        "held-out sentences are translated exactly, for example:"
    )
    examples = [english for english, _ in held_out[:5]]
    for english, german in zip(examples, translator(examples), strict=True):
        print(f"   {english}\n   -> {german}")
    for english, german, translation in wrong[:3]:
        print(f"   {english}\n   not {german}\n   but {translation}")

    translator.save(OUTPUT, overwrite=True)
    draw_attention(translator, SHOWN, OUTPUT / "attention.png")
    print(f"4. {OUTPUT}/attention.png shows where it looked.")

    exported = OUTPUT / "exported" / "1"
    translator.export_saved_model(exported, overwrite=True)
    elsewhere = translate_elsewhere(exported, examples)
    if elsewhere != translator(examples):
        raise RuntimeError(f"The SavedModel translates otherwise: {elsewhere}")
    print(
        f"5. The SavedModel in {exported} gives the same in a process with "
        "tensorflow and tensorflow_text alone. Try:\n"
        f"   {sys.executable} {elsewhere_program()} {exported} '{SHOWN}'\n"
        f"   {sys.executable} -m keras_transformer translate {OUTPUT} "
        f"'{SHOWN}'"
    )


if __name__ == "__main__":
    # Such a small model trains faster if each core has a part of a batch.
    give_cores_to_parts()
    main()
