"""A small translator and its SavedModel, for all that looks at exports."""

import types

import keras
import pytest

import keras_transformer as kt

ANIMALS = {"cat": "Katze", "dog": "Hund", "hen": "Henne", "fox": "Fuchs"}
PAIRS = [
    (f"the {one} sees the {other}", f"{ANIMALS[one]} sieht {ANIMALS[other]}")
    for one in ANIMALS
    for other in ANIMALS
] * 5


def make_small_translator(
    model_type="unigram", search=None, is_shared=True, **options
):
    """Has random weights that prefer some token clearly."""
    keras.utils.set_random_seed(7)
    sides = [[text for pair in PAIRS for text in pair]]
    if not is_shared:
        sides = [*zip(*PAIRS, strict=True)]
    tokenizers = [
        kt.Tokenizer.train(
            lines,
            vocabulary_size=32 if is_shared else 26,
            model_type=model_type,
            verbose=0,
        )
        for lines in sides
    ]
    if not is_shared:
        options["source_vocabulary_size"] = tokenizers[0].vocabulary_size
    model = kt.Transformer(
        tokenizers[-1].vocabulary_size,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        **options,
    )
    for variable in model.trainable_variables:
        if variable.ndim == 2:
            variable.assign(3 * variable.numpy())
    return kt.Translator(model, *tokenizers, search=search)


@pytest.fixture(scope="session")
def make_small():
    """Gives the function that makes such a translator."""
    return make_small_translator


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """The translator, its folder, and its SavedModel, version 1."""
    folder = tmp_path_factory.mktemp("small")
    translator = make_small_translator()
    translator.save(folder / "translator")
    # As after training; an export leaves it out.
    translator.model.compile("adam", "mse", jit_compile=False)
    translator.model.optimizer.build(translator.model.variables)
    translator.export_saved_model(folder / "exported" / "1")
    return types.SimpleNamespace(
        translator=translator,
        folder=folder / "translator",
        saved_model=folder / "exported" / "1",
    )
