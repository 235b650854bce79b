"""CTranslate2 says from the exported folder what the model says here."""

import gc
import json
import os
import shutil
import sys

import ctranslate2
import keras
import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

import keras_transformer as kt

ANIMALS = {"cat": "Katze", "dog": "Hund", "hen": "Henne", "fox": "Fuchs"}
PAIRS = [
    (f"the {one} sees the {other}", f"{ANIMALS[one]} sieht {ANIMALS[other]}")
    for one in ANIMALS
    for other in ANIMALS
] * 5
ENGLISH, GERMAN = zip(*PAIRS, strict=True)

TEXTS = [
    "the cat sees the dog",
    "fox",
    "",
    "the hen sees the fox " * 2,
    "the dog sees 漢 😀 the cat",
    "cat dog",
    "hen hen the",
]

SIZES = {
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 33,
    "intermediate_dim": 17,
}
MODELS = {
    "default": {},
    "pre-norm": {"normalize_first": True, "activation": "gelu"},
    "concatenated": {
        "positional_encoding": "concatenated",
        "activation": "silu",
        "tie_output": False,
    },
    "learned": {
        "positional_encoding": "learned",
        "max_length": 60,
        "activation": "tanh",
    },
    "untied": {
        "activation": "sigmoid",
        "normalize_first": True,
        "tie_source": False,
        "tie_output": False,
    },
    "two vocabularies": {},
    "biases": {"attention_bias": True, "output_bias": True},
    "shallow decoder": {
        "num_decoder_layers": 1,
        "normalize_first": True,
        "tie_output": False,
    },
}
MAX_LENGTH = 29

# Two engines sum the same products in other orders: float32 logits of these
# models, with kernels of thrice the usual size, differ by up to 1e-4.
SCORE_TOLERANCE = {"rtol": 1e-4, "atol": 5e-4}

GREEDY = {
    "beam_size": 1,
    "length_penalty": 0,
    "min_decoding_length": 0,
    "max_decoding_length": MAX_LENGTH,
    "return_scores": True,
    "return_end_token": True,
}


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(ENGLISH + GERMAN, vocabulary_size=32, verbose=0)


@pytest.fixture(scope="module")
def target_tokenizer():
    return kt.Tokenizer.train(
        GERMAN, vocabulary_size=31, model_type="bpe", verbose=0
    )


def scrambled(model):
    """Random norms and biases too, and attention that attends."""
    random = np.random.default_rng(7)
    for variable in model.trainable_variables:
        value = keras.ops.convert_to_numpy(variable).astype("float32")
        if variable.name == "kernel":
            value = 3 * value
        elif value.ndim == 1:
            value = value + 0.3 * random.normal(size=value.shape)
        variable.assign(value)
    columns, output = output_columns(model)
    # Some targets end: large logits are of the end token more often.
    columns[:, model.end_token_id] *= 1.5
    # As after training, padding and start token are most improbable: the
    # first unit is about 10, and lowers their logits by 5 times that.
    columns[0] = 0
    columns[:, [0, 2]] = 0
    columns[0, [0, 2]] = -5
    output.assign(columns if model.output_projection else columns.T)
    norm = model.decoder.layers[-1].feed_forward_add_norm.norm
    if model.normalize_first:
        norm = model.decoder.final_norm
    beta = keras.ops.convert_to_numpy(norm.beta).copy()
    beta[0] = 10
    norm.beta.assign(beta)
    return model


def output_columns(model):
    """A copy of the output matrix `(D, V)`, and the variable that holds it."""
    if model.output_projection:
        variable = model.output_projection.kernel
        return keras.ops.convert_to_numpy(variable).copy(), variable
    variable = model.target_embedding.embeddings
    return keras.ops.convert_to_numpy(variable).T.copy(), variable


def make_translator(tokenizer, target_tokenizer=None, **arguments):
    sizes = {}
    if target_tokenizer is not None:
        sizes["source_vocabulary_size"] = tokenizer.vocabulary_size
    model = kt.Transformer(
        (target_tokenizer or tokenizer).vocabulary_size,
        **{**SIZES, **sizes, **arguments},
    )
    return kt.Translator(scrambled(model), tokenizer, target_tokenizer)


def load(folder, **options):
    return ctranslate2.Translator(
        str(folder), inter_threads=1, intra_threads=1, **options
    )


@pytest.fixture(scope="module")
def exported(tokenizer, target_tokenizer, tmp_path_factory):
    """A translator and its exported folder, of each kind."""
    keras.utils.set_random_seed(29)
    folder = tmp_path_factory.mktemp("exported")
    found = {}
    for kind, arguments in MODELS.items():
        two = kind == "two vocabularies"
        translator = make_translator(
            tokenizer, target_tokenizer if two else None, **arguments
        )
        translator.export_ctranslate2(folder / kind)
        found[kind] = (translator, folder / kind)
    return found


def pieces_of(tokenizer, texts):
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(tokenizer.model)
    return processor.encode(texts, out_type=str)


def source_ids_of(tokenizer, texts):
    rows = [[*row, 3] if row else [] for row in tokenizer.encode(texts)]
    longest = max(map(len, rows))
    return [row + [0] * (longest - len(row)) for row in rows]


def check_parity(translator, folder):
    """Compares greedy targets and scores; returns the targets."""
    source_ids = source_ids_of(translator.tokenizer, TEXTS)
    target_ids, scores = translator.model.generate(
        source_ids, max_length=MAX_LENGTH
    )
    found, found_scores = translated(translator, folder, **GREEDY)
    assert found == [[token for token in row if token] for row in target_ids]
    np.testing.assert_allclose(found_scores, scores, **SCORE_TOLERANCE)
    return found


def translated(translator, folder, **options):
    """The ids and scores of what CTranslate2 makes of `TEXTS`."""
    results = load(folder).translate_batch(
        pieces_of(translator.tokenizer, TEXTS), **options
    )
    id_of = translator.target_tokenizer.pieces.index
    return (
        [list(map(id_of, result.hypotheses[0])) for result in results],
        [result.scores[0] for result in results],
    )


def contents(folder):
    return {
        str(path.relative_to(folder)): path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


# Parity


@pytest.mark.parametrize("kind", MODELS)
def test_targets_and_scores_are_those_of_the_model(exported, kind):
    found = check_parity(*exported[kind])
    assert found[TEXTS.index("")] == []
    assert len(set(map(tuple, found))) > 3  # the model tells texts apart


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_beam_search_with_its_length_penalty_is_the_same(exported, alpha):
    translator, folder = exported["default"]
    target_ids, scores = translator.model.generate(
        source_ids_of(translator.tokenizer, TEXTS),
        search=kt.BeamSearch(4, alpha, patience=1, length_penalty_form="power"),
        max_length=MAX_LENGTH,
    )
    options = {"beam_size": 4, "length_penalty": alpha, "patience": 1}
    found, found_scores = translated(translator, folder, **GREEDY | options)
    assert found == [[token for token in row if token] for row in target_ids]
    np.testing.assert_allclose(found_scores, scores, **SCORE_TOLERANCE)


def test_attention_is_the_mean_of_all_heads(exported):
    translator, folder = exported["default"]
    text = "the cat sees the dog"
    target_ids, expected = translator.model.generate(
        source_ids_of(translator.tokenizer, [text]),
        max_length=MAX_LENGTH,
        return_scores=False,
        return_attention=True,
    )
    [result] = load(folder).translate_batch(
        pieces_of(translator.tokenizer, [text]), **GREEDY, return_attention=True
    )
    [found] = result.attention
    assert len(found) > 2
    np.testing.assert_allclose(
        found, expected[0, : len(found), : len(found[0])], atol=1e-4
    )


def test_some_targets_end_and_some_are_cut(exported):
    found = [
        row
        for translator, _ in exported.values()
        for row in translator.model.generate(
            source_ids_of(translator.tokenizer, TEXTS), max_length=MAX_LENGTH
        )[0].tolist()
    ]
    assert any(3 in row[1:] for row in found)
    assert any(3 not in row and 0 not in row for row in found)


@pytest.mark.parametrize("kind", MODELS)
def test_random_targets_have_the_probabilities_of_the_model(exported, kind):
    translator, folder = exported[kind]
    model = translator.model
    texts = [text for text in TEXTS if text]
    source_ids = source_ids_of(translator.tokenizer, texts)
    random = np.random.default_rng(11)
    target_ids = random.integers(4, 30, size=(len(texts), MAX_LENGTH))
    logits = model(
        {
            "source_ids": np.array(source_ids),
            "target_ids": np.pad(
                target_ids, ((0, 0), (1, 0)), constant_values=2
            ),
        }
    )
    logits = keras.ops.convert_to_numpy(logits).copy()
    logits[:, :, [0, 2]] = -1e9
    log_probabilities = keras.ops.convert_to_numpy(
        keras.ops.log_softmax(logits)
    )
    ended = np.pad(target_ids, ((0, 0), (0, 1)), constant_values=3)
    expected = np.take_along_axis(
        log_probabilities, ended[:, :, np.newaxis], axis=2
    )[:, :, 0]

    pieces = translator.target_tokenizer.pieces
    results = load(folder).score_batch(
        pieces_of(translator.tokenizer, texts),
        [[pieces[index] for index in row] for row in target_ids],
    )
    found = [result.log_probs for result in results]
    np.testing.assert_allclose(found, expected, **SCORE_TOLERANCE)


@pytest.mark.parametrize("kind", ["default", "two vocabularies"])
def test_text_is_translated_as_by_the_translator(exported, kind):
    translator, folder = exported[kind]
    source, target = (
        sentencepiece.SentencePieceProcessor(str(folder / name))
        for name in ("source.spm", "target.spm")
    )
    results = load(folder).translate_batch(
        source.encode(TEXTS, out_type=str),
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=MAX_LENGTH,
    )
    found = translator.target_tokenizer.decode(
        [target.piece_to_id(result.hypotheses[0]) for result in results]
    )
    assert found == translator(TEXTS, max_length=MAX_LENGTH)


def test_sentencepiece_models_are_those_of_the_tokenizers(exported):
    translator, folder = exported["two vocabularies"]
    assert sorted(os.listdir(folder)) == [
        "config.json",
        "keras_transformer.json",
        "model.bin",
        "source.spm",
        "source_vocabulary.json",
        "target.spm",
        "target_vocabulary.json",
    ]
    for name, tokenizer in (
        ("source", translator.tokenizer),
        ("target", translator.target_tokenizer),
    ):
        assert (folder / f"{name}.spm").read_bytes() == tokenizer.model
        vocabulary = (folder / f"{name}_vocabulary.json").read_text()
        assert json.loads(vocabulary) == tokenizer.pieces


def test_configuration_names_tokens_and_epsilon(exported):
    _, folder = exported["default"]
    found = json.loads((folder / "config.json").read_text())
    expected = {
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "decoder_start_token": "<s>",
        "add_source_bos": False,
        "add_source_eos": True,
        "layer_norm_epsilon": 1e-6,
    }
    assert expected.items() <= found.items()


def test_matrix_that_layers_share_is_written_once(exported):
    translator, folder = exported["default"]
    positions = 2048 * translator.model.hidden_dim
    size = 4 * (translator.model.count_params() + positions)
    assert size < (folder / "model.bin").stat().st_size < 1.05 * size


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_weights_are_written_in_float32(exported, tokenizer, tmp_path, dtype):
    translator = make_translator(tokenizer, dtype=dtype)
    translator.export_ctranslate2(os.fsencode(tmp_path))
    _, folder = exported["default"]
    size = (folder / "model.bin").stat().st_size
    assert (tmp_path / "model.bin").stat().st_size == size
    model = kt.Transformer(tokenizer.vocabulary_size, **SIZES)
    model.set_weights(
        [
            keras.ops.convert_to_numpy(variable).astype("float32")
            for variable in translator.model.weights
        ]
    )
    check_parity(kt.Translator(model, tokenizer), tmp_path)


def test_int8_translates(exported):
    translator, folder = exported["default"]
    sources = pieces_of(translator.tokenizer, TEXTS)
    results = load(folder, compute_type="int8").translate_batch(
        sources, **GREEDY
    )
    assert all(np.isfinite(result.scores[0]) for result in results)
    assert [bool(result.hypotheses[0]) for result in results] == [
        bool(source) for source in sources
    ]


# `verify_export`


@pytest.mark.parametrize("kind", ["default", "learned", "two vocabularies"])
def test_an_export_is_verified(exported, kind):
    translator, folder = exported[kind]
    report = kt.verify_export(translator, folder, TEXTS)
    assert report.passed
    assert report.format == "CTranslate2"
    assert report.identical == len(TEXTS)
    assert report.size_bytes == sum(
        path.stat().st_size for path in folder.iterdir()
    )
    assert report.foreign_operations == report.other_parts == ()
    # Some translations are cut where the translator cuts them.
    sources = translator.tokenizer.encode(TEXTS)
    targets = translator.target_tokenizer.encode(translator(TEXTS))
    longest = translator.model.max_length or 1000
    assert any(
        len(target) >= min(len(source) + 1 + 50, longest)
        for source, target in zip(sources, targets, strict=True)
    )


@pytest.mark.parametrize(
    "search",
    [
        kt.GreedySearch(),
        kt.BeamSearch(3, patience=1, length_penalty_form="power"),
    ],
)
def test_a_share_of_tokens_that_are_never_chosen_is_no_fault(
    tokenizer, tmp_path, search
):
    # As after a short training, or one with much label smoothing.
    model = make_translator(tokenizer, normalize_first=True).model
    columns, output = output_columns(model)
    columns[:, [0, 2]] = 0
    output.assign(columns.T)
    translator = kt.Translator(model, tokenizer, search=search)
    translator.export_ctranslate2(tmp_path / "new")
    report = kt.verify_export(translator, tmp_path / "new", TEXTS)
    assert report.passed and report.score_gap < 1e-3
    # The copy of the translator is one: it has been left as it was.
    assert model.logit_bias is None


def test_a_model_with_lora_is_exported_and_verified_merged(tokenizer, tmp_path):
    translator = make_translator(tokenizer)
    layer = translator.model.decoder.layers[0].feed_forward.inner
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    translator.export_ctranslate2(tmp_path / "new")
    assert kt.verify_export(translator, tmp_path / "new", TEXTS[:3]).passed


def test_a_line_that_is_longer_than_the_positions_is_named(exported):
    translator, folder = exported["default"]
    lines = ["one", "one two " * 300]
    message = "than CTranslate2 has positions, 2,048. Received: line 2 of 2,401"
    with pytest.raises(ValueError, match=message):
        kt.verify_export(translator, folder, lines)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_search_is_verified(exported, alpha):
    translator, folder = exported["untied"]
    search = kt.BeamSearch(3, alpha, patience=1, length_penalty_form="power")
    searching = kt.Translator(
        translator.model, translator.tokenizer, search=search
    )
    assert searching(TEXTS) != translator(TEXTS)
    report = kt.verify_export(searching, folder, TEXTS)
    assert report.passed


@pytest.mark.parametrize(
    "search",
    [
        kt.BeamSearch(),
        kt.BeamSearch(4, 1, 2, patience=1, length_penalty_form="power"),
        kt.GreedySearch(no_repeat_ngram_size=2),
        kt.Sampling(),
    ],
)
def test_a_search_that_ctranslate2_lacks_is_named(exported, search):
    translator, folder = exported["default"]
    other = kt.Translator(translator.model, translator.tokenizer, search=search)
    message = "must be one that CTranslate2 has.*--patience 1.*Received: "
    with pytest.raises(ValueError, match=message + type(search).__name__):
        kt.verify_export(other, folder, TEXTS)


def test_an_export_of_other_weights_is_no_such_model(exported):
    _, folder = exported["default"]
    translator, _ = exported["pre-norm"]
    report = kt.verify_export(translator, folder, TEXTS)
    assert not report.passed
    assert report.other_parts == ("weights",)
    assert report.beyond_tolerance > 0


def test_what_cannot_be_verified_is_named(exported, tmp_path, monkeypatch):
    translator, folder = exported["default"]
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = (copy / "model.bin").read_bytes()
    (copy / "model.bin").write_bytes(content[: len(content) // 2])
    with pytest.raises(
        ValueError, match="CTranslate2 model cannot be rea.*copy"
    ):
        kt.verify_export(translator, copy, TEXTS)
    (copy / "keras_transformer.json").unlink()  # as of another program
    with pytest.raises(ValueError, match="does not say what it was made from"):
        kt.verify_export(translator, copy, TEXTS)
    (tmp_path / "ctranslate2.py").write_text(
        "raise ModuleNotFoundError(name='ctranslate2')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    message = r"`verify_export` needs ctranslate2.*'.\[ctranslate2\]'"
    with pytest.raises(ImportError, match=message):
        kt.verify_export(translator, folder, TEXTS)


# Tokens that must not be chosen


@pytest.mark.parametrize("tie_output", [True, False])
def test_padding_and_start_token_are_never_chosen(
    tokenizer, tmp_path, tie_output
):
    translator = make_translator(
        tokenizer, tie_source=False, tie_output=tie_output
    )
    model = translator.model
    source_ids = np.array(source_ids_of(tokenizer, ["the cat sees the dog"]))
    inputs = {"source_ids": source_ids, "target_ids": np.array([[2]])}
    favourite = int(np.argmax(model(inputs)))
    columns, output = output_columns(model)
    columns[:, [0, 2]] = 3 * columns[:, [favourite]]
    output.assign(columns.T if tie_output else columns)
    assert np.argmax(model(inputs)) in (0, 2)

    translator.export_ctranslate2(tmp_path)
    target_ids, _ = model.generate(
        source_ids_of(tokenizer, TEXTS), max_length=MAX_LENGTH
    )
    found, _ = translated(translator, tmp_path, **GREEDY)
    assert found == [[token for token in row if token] for row in target_ids]
    (result,) = load(tmp_path).translate_batch(
        pieces_of(tokenizer, ["the cat sees the dog"]),
        beam_size=5,
        num_hypotheses=5,
    )
    found = {piece for pieces in result.hypotheses for piece in pieces}
    assert found and not found & {"<pad>", "<s>"}


# Lengths


def test_positions_reach_as_far_as_the_model(tokenizer, tmp_path):
    translator = make_translator(tokenizer, num_layers=1, max_length=2500)
    translator.export_ctranslate2(tmp_path)
    long = "fox " * 2200
    (ids,) = source_ids_of(tokenizer, [long])
    assert 2048 < len(ids) < 2500
    target_ids, scores = translator.model.generate([ids], max_length=5)
    (result,) = load(tmp_path).translate_batch(
        pieces_of(tokenizer, [long]),
        **{**GREEDY, "max_decoding_length": 5, "max_input_length": 0},
    )
    id_of = tokenizer.pieces.index
    assert [list(map(id_of, result.hypotheses[0]))] == target_ids.tolist()
    np.testing.assert_allclose(result.scores, scores, **SCORE_TOLERANCE)


def test_learned_positions_end_where_the_model_ends(exported):
    translator, folder = exported["learned"]
    (pieces,) = pieces_of(translator.tokenizer, ["fox " * 60])
    engine = load(folder)
    options = {"beam_size": 1, "max_decoding_length": 60}
    with pytest.raises(RuntimeError, match="No position encodings"):
        engine.translate_batch([pieces], **options)
    assert engine.translate_batch([pieces], max_input_length=60, **options)


# What CTranslate2 has not


@pytest.mark.parametrize("activation", ["elu", "leaky_relu", None])
def test_other_activation_is_refused(tokenizer, tmp_path, activation):
    translator = make_translator(tokenizer, activation=activation)
    name = activation or "linear"
    message = (
        "must be one that CTranslate2 computes: relu, gelu, silu, tanh, "
        f"sigmoid. Received: activation='{name}'"
    )
    with pytest.raises(ValueError, match=message):
        translator.export_ctranslate2(tmp_path / "new")
    assert os.listdir(tmp_path) == []


class WithBias(kt.Transformer):
    """Has what CTranslate2 would leave out."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.bias = self.add_weight(shape=(self.vocabulary_size,), name="bias")


class Cooler(kt.Transformer):
    """Computes something else with the same weights."""

    def project(self, x):
        return super().project(x) / 2.0


class Mirrored(kt.Transformer):
    """Decodes in a way of its own."""

    def decode_step(self, *args, **kwargs):
        logits, cache = super().decode_step(*args, **kwargs)
        return -logits, cache


class Scaled(kt.Transformer):
    """Embeds in a way of its own."""

    def embed_targets(self, *args, **kwargs):
        return 2 * super().embed_targets(*args, **kwargs)


class OwnEncoder(kt.Encoder):
    """May compute anything with the same weights."""


class OwnDecoder(kt.Decoder):
    """May compute anything with the same weights."""


class WithOwnEncoder(kt.Transformer):
    encoder_class = OwnEncoder


class WithOwnDecoder(kt.Transformer):
    decoder_class = OwnDecoder


@pytest.mark.parametrize(
    "kind, message",
    [
        (WithOwnEncoder, "only the layers of `Transformer`.*a OwnEncoder"),
        (WithOwnDecoder, "only the layers of `Transformer`.*a OwnDecoder"),
        (Scaled, "a Scaled, which overrides `embed_targets`"),
        (Mirrored, "a Mirrored, which overrides `decode_step`"),
        (
            Cooler,
            "compute as `Transformer` does.*Cooler, .*overrides `project`",
        ),
        (WithBias, "have only the layers of `Transformer`.*WithBias with .*b"),
    ],
)
def test_another_model_is_refused(tokenizer, tmp_path, kind, message):
    config = make_translator(tokenizer).model.get_config()
    translator = kt.Translator(kind.from_config(config), tokenizer)
    with pytest.raises(ValueError, match=message):
        translator.export_ctranslate2(tmp_path / "new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments", [{"key_dim": 5}, {"value_dim": 7}, {"key_dim": 7}]
)
def test_heads_of_another_size_are_refused(tokenizer, tmp_path, arguments):
    translator = make_translator(tokenizer, **arguments)
    ((name, size),) = arguments.items()
    message = (
        "must be `hidden_dim / num_heads`, as CTranslate2 splits .*Received: "
        f".*{name}={size}.*hidden_dim=33, num_heads=3"
    )
    with pytest.raises(ValueError, match=message):
        translator.export_ctranslate2(tmp_path / "new")
    assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_quantised_model_is_refused(tokenizer, tmp_path, monkeypatch):
    # Keras collects garbage for each layer it quantises.
    monkeypatch.setattr(gc, "collect", lambda: 0)
    translator = make_translator(tokenizer)
    translator.model.quantize("int8")
    for export in (translator.export_ctranslate2, translator.export_litert):
        with pytest.raises(ValueError, match="quantised layer cannot be saved"):
            export(tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_special_pieces_that_differ_are_refused(tokenizer, tmp_path):
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    proto.pieces[0].piece = proto.trainer_spec.pad_piece = "[PAD]"
    other = kt.Tokenizer(proto.SerializeToString())
    translator = make_translator(tokenizer, other)
    message = (
        "must have the same special pieces.*Received: <pad>, <unk>, <s>, </s> "
        r"of the source and \[PAD\], <unk>, <s>, </s> of the target"
    )
    with pytest.raises(ValueError, match=message):
        translator.export_ctranslate2(tmp_path / "new")
    assert os.listdir(tmp_path) == []


def test_missing_package_names_the_extra(exported, tmp_path, monkeypatch):
    translator, _ = exported["default"]
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    message = (
        "`export_ctranslate2` needs ctranslate2, which is not installed. "
        r"`pip install '.\[ctranslate2\]'`, in a checkout of this library, "
        "installs it."
    )
    with pytest.raises(ImportError, match=message):
        translator.export_ctranslate2(tmp_path / "new")
    assert os.listdir(tmp_path) == []


# Folders


def test_folder_of_an_export_is_refused_and_untouched(exported):
    translator, folder = exported["default"]
    before = contents(folder)
    message = "exists already, and nothing in it was touched.*overwrite=True"
    with pytest.raises(FileExistsError, match=message):
        translator.export_ctranslate2(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "model.bin", "source.spm"])
def test_folder_of_something_else_is_untouched(
    exported, tmp_path, overwrite, name
):
    translator, _ = exported["default"]
    (tmp_path / name).write_text("precious")
    message = "something other than a CTranslate2 model and its tokenizers, a"
    with pytest.raises(FileExistsError, match=message):
        translator.export_ctranslate2(tmp_path, overwrite=overwrite)
    with pytest.raises(FileExistsError, match=message):
        file = tmp_path / name
        translator.export_ctranslate2(file, overwrite=overwrite)
    assert contents(tmp_path) == {name: b"precious"}


def test_overwrite_replaces_an_export(exported, tmp_path, capfd):
    translator, folder = exported["default"]
    path = tmp_path / "en-de"
    path.mkdir()
    for name in ("model.bin", "source.spm"):
        (path / name).write_text("an export")
    (path / "vmap.txt").write_text("old")
    translator.export_ctranslate2(str(path), overwrite=True)
    assert capfd.readouterr().out == ""
    assert contents(tmp_path / "en-de") == contents(folder)
    assert os.listdir(tmp_path) == ["en-de"]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()]
)
def test_export_that_fails_leaves_the_old_one(
    exported, tmp_path, monkeypatch, error
):
    translator, _ = exported["default"]
    path = tmp_path / "en-de"
    path.mkdir()
    for name in ("model.bin", "source.spm"):
        (path / name).write_text("old")
    before = contents(tmp_path)

    def save(spec, folder):
        with open(os.path.join(folder, "model.bin"), "wb") as file:
            file.write(b"half")
        raise error

    monkeypatch.setattr(ctranslate2.specs.TransformerSpec, "save", save)
    with pytest.raises(type(error)):
        translator.export_ctranslate2(path, overwrite=True)
    assert contents(tmp_path) == before
    with pytest.raises(type(error)):
        translator.export_ctranslate2(tmp_path / "new")
    assert contents(tmp_path) == before
