"""A translator in the fork of a process, and in processes that are spawned."""

import multiprocessing
import os
import pickle
import signal

import keras

import keras_transformer as kt


def translate(pickled):
    return pickle.loads(pickled)(["the cat"])


if __name__ == "__main__":
    lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    tokenizer = kt.Tokenizer.train(lines, vocabulary_size=16, verbose=0)
    model = kt.Transformer(
        tokenizer.vocabulary_size,
        num_layers=1,
        num_heads=1,
        hidden_dim=8,
        intermediate_dim=8,
    )
    translator = kt.Translator(model, tokenizer)
    ids = keras.ops.array([[4, 5, 3]])
    for compute in (
        lambda: translator(["the cat"]),
        lambda: translator.export_saved_model("saved_model"),
        lambda: translator.export_litert("file.tflite"),
        lambda: translator.export_ctranslate2("ctranslate2"),
        lambda: model({"source_ids": ids, "target_ids": ids}),
        lambda: model.search(ids),
    ):
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # if it waits for ever
            try:
                compute()
            except RuntimeError as error:
                os._exit("was forked" not in str(error))
            os._exit(2)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        [found] = pool.map(translate, [pickle.dumps(translator)])
    assert found == translator(["the cat"])
