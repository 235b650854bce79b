"""A Marian model of Hugging Face computes here what it computes there."""

import io
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import sentencepiece

import keras_transformer as kt
from keras_transformer.serving.litert_translator import LiteRTTranslator

ENGLISH = ["the cat sees the dog", "the hen sees the fox", "the dog"] * 9
GERMAN = ["Katze sieht Hund", "Henne sieht Fuchs", "der Hund"] * 9
TEXTS = ["the cat sees the dog", "the hen", "", "a fox 😀 sees the hen"]
D, F, N = 16, 24, 2
CONFIG = {
    "model_type": "marian",
    "d_model": D,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": N,
    "decoder_attention_heads": N,
    "encoder_ffn_dim": F,
    "decoder_ffn_dim": F,
    "activation_function": "swish",
    "scale_embedding": True,
    "normalize_before": False,
    "static_position_embeddings": True,
    "max_position_embeddings": 64,
    "eos_token_id": 0,
    "num_beams": 3,
}


def sentencepiece_model(lines):
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=content,
        vocab_size=40,  # at most
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return content.getvalue()


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]
    return pieces[3:]  # without the special ones


def random_weights(config, vocabulary_sizes):
    """As Hugging Face names them; a matrix has a row for each output."""
    generator = np.random.default_rng(4)
    weights = {}

    def add(name, *shape, mean=0.0, deviation=0.4):
        array = generator.normal(mean, deviation, shape)
        weights[name] = array.astype("float32")

    def add_dense(name, inputs, outputs):
        add(f"{name}.weight", outputs, inputs)
        add(f"{name}.bias", outputs)

    def add_norm(name):
        add(f"{name}.weight", D, mean=1.0)
        add(f"{name}.bias", D)

    source_size, size = vocabulary_sizes
    if config.get("share_encoder_decoder_embeddings", True):
        add("model.shared.weight", size, D)
    else:
        add("model.encoder.embed_tokens.weight", source_size, D)
        add("model.decoder.embed_tokens.weight", size, D)
    add("final_logits_bias", 1, size)
    if not config.get("tie_word_embeddings", True):
        add("lm_head.weight", size, D)
    for stack, attentions in (
        ("encoder", ["self_attn"]),
        ("decoder", ["self_attn", "encoder_attn"]),
    ):
        for number in range(config[f"{stack}_layers"]):
            layer = f"model.{stack}.layers.{number}"
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    add_dense(f"{layer}.{attention}.{part}", D, D)
                add_norm(f"{layer}.{attention}_layer_norm")
            add_dense(f"{layer}.fc1", D, F)
            add_dense(f"{layer}.fc2", F, D)
            add_norm(f"{layer}.final_layer_norm")
    return weights


def write_folder(folder, languages=(), is_shared=False, **settings):
    """Writes a folder as a download of one is; gives its parts."""
    folder.mkdir()
    sources = sentencepiece_model(ENGLISH)
    targets = sources if is_shared else sentencepiece_model(GERMAN)
    (folder / "source.spm").write_bytes(sources)
    (folder / "target.spm").write_bytes(targets)
    ids = target_ids = numbered(
        {*pieces_of(sources), *pieces_of(targets)}, languages
    )
    if not settings.get("share_encoder_decoder_embeddings", True):
        ids = numbered(pieces_of(sources))
        target_ids = numbered(pieces_of(targets))
        (folder / "target_vocab.json").write_text(json.dumps(target_ids))
    (folder / "vocab.json").write_text(json.dumps(ids))
    config = {
        **CONFIG,
        "vocab_size": len(ids),
        "pad_token_id": target_ids["<pad>"],
        "decoder_start_token_id": target_ids["<pad>"],
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = random_weights(config, (len(ids), len(target_ids)))
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    return config, (ids, target_ids), weights, targets


def numbered(pieces, languages=()):
    names = ["</s>", "<unk>", *sorted(pieces), *languages, "<pad>"]
    return {name: number for number, name in enumerate(names)}


# The model of Hugging Face in plain numpy, for one sentence.


def dense(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def norm(x, weights, name):
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def attend(x, value, weights, name, is_causal=False):
    def heads(y, part):
        y = dense(y, weights, f"{name}.{part}")
        return y.reshape(len(y), N, -1).transpose(1, 0, 2)

    query, keys = heads(x, "q_proj"), heads(value, "k_proj")
    scores = query @ keys.transpose(0, 2, 1) / np.sqrt(D / N)
    if is_causal:
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    y = (shares @ heads(value, "v_proj")).transpose(1, 0, 2)
    y = dense(y.reshape(len(x), D), weights, f"{name}.out_proj")
    return norm(x + y, weights, f"{name}_layer_norm")


def feed_forward(x, weights, name):
    y = dense(x, weights, f"{name}.fc1")
    y = dense(y / (1 + np.exp(-y)), weights, f"{name}.fc2")
    return norm(x + y, weights, f"{name}.final_layer_norm")


def embed(ids, matrix, config):
    scale = np.sqrt(D) if config["scale_embedding"] else 1
    angles = np.arange(len(ids))[:, None] / 10_000 ** (np.arange(0, D, 2) / D)
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return scale * matrix[ids] + positions


def logits_of(source_ids, target_ids, weights, config):
    source, target = (
        weights.get(
            f"model.{stack}.embed_tokens.weight",
            weights.get("model.shared.weight"),
        )
        for stack in ("encoder", "decoder")
    )
    encoded = embed(source_ids, source, config)
    for number in range(config["encoder_layers"]):
        name = f"model.encoder.layers.{number}"
        encoded = attend(encoded, encoded, weights, f"{name}.self_attn")
        encoded = feed_forward(encoded, weights, name)
    x = embed(target_ids, target, config)
    for number in range(config["decoder_layers"]):
        name = f"model.decoder.layers.{number}"
        x = attend(x, x, weights, f"{name}.self_attn", is_causal=True)
        x = attend(x, encoded, weights, f"{name}.encoder_attn")
        x = feed_forward(x, weights, name)
    output = weights.get("lm_head.weight", target)
    return x @ output.T + weights["final_logits_bias"][0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_shared": True},
        {"scale_embedding": False},
        {"tie_word_embeddings": False},
        {"share_encoder_decoder_embeddings": False},
        {"decoder_start_token_id": 7},
    ],
    ids=["usual", "one", "not scaled", "untied", "separate", "start"],
)
def test_logits_are_those_of_the_equations(tmp_path, options):
    config, (ids, target_ids), weights, _ = write_folder(
        tmp_path / "marian", **options
    )
    translator = kt.Translator.from_marian(tmp_path / "marian")
    model = translator.model
    assert model.tie_source == options.get("is_shared", False)
    pieces = translator.target_tokenizer.pieces
    [source_ids] = translator.encode(["the cat sees the hen"])
    found = model(
        {
            "source_ids": np.array([[*source_ids, 3]]),
            "target_ids": np.array([[2, 5, 9, 11]]),
        }
    )[0]
    theirs = [ids[translator.tokenizer.pieces[i]] for i in source_ids]
    expected = logits_of(
        [*theirs, ids["</s>"]],
        [
            config["decoder_start_token_id"],
            *(target_ids[pieces[i]] for i in (5, 9, 11)),
        ],
        weights,
        config,
    )
    # Padding and the start token, 0 and 2, have no probability.
    ours = [1, *range(3, len(pieces))]
    theirs = [target_ids[pieces[i]] for i in ours]
    found = np.take(found, ours, axis=1)
    np.testing.assert_allclose(found, expected[:, theirs], atol=2e-4)


def test_pieces_of_no_vocabulary_are_unknown_or_never_chosen(tmp_path):
    folder = tmp_path / "marian"
    write_folder(folder)
    damaged(folder, "vocab.json", H=..., x=...)
    translator = kt.Translator.from_marian(folder)
    source = translator.model.source_embedding.embeddings.numpy()
    place = translator.tokenizer.pieces.index("x")  # of the source alone
    np.testing.assert_array_equal(source[place], source[1])
    bias = translator.model.logit_bias.numpy()
    place = translator.target_tokenizer.pieces.index("H")
    np.testing.assert_array_equal(np.where(bias == -100)[0], [0, 2, place])


def test_losses_with_smoothing_are_sane(tmp_path):
    """Which take the mean of all logits, of what is never chosen too."""
    write_folder(tmp_path / "marian")
    model = kt.Translator.from_marian(tmp_path / "marian").model
    logits = model(
        {
            "source_ids": np.array([[4, 5, 3]]),
            "target_ids": np.array([[2, 5, 9]]),
        }
    )
    labels = np.array([[5, 9, 3]])
    plain, smoothed = (
        float(kt.LabelSmoothedCrossentropy(share)(labels, logits))
        for share in (0.0, 0.1)
    )
    assert abs(smoothed - plain) < 3


def test_what_is_null_is_as_if_it_were_not_there(tmp_path):
    nothing = ["normalize_before", "decoder_start_token_id", "dropout"]
    nothing += ["max_position_embeddings", "tie_word_embeddings", "num_beams"]
    write_folder(tmp_path / "marian", **dict.fromkeys(nothing))
    translator = kt.Translator.from_marian(tmp_path / "marian")
    assert translator.model.tie_output
    assert translator.model.max_length is None
    assert isinstance(translator.search, kt.GreedySearch)


def test_a_language_is_a_word_of_the_source(tmp_path):
    folder = tmp_path / "marian"
    _, (ids, _), weights, _ = write_folder(
        folder, languages=[">>fra<<", ">>deu<<"]
    )
    translator = kt.Translator.from_marian(folder)
    [first, *rest] = translator.encode([">>deu<< the dog"])[0]
    assert translator.tokenizer.pieces[first] == "▁>>deu<<"
    assert rest == translator.encode(["the dog"])[0]
    vector = translator.model.source_embedding.embeddings.numpy()[first]
    expected = weights["model.shared.weight"][ids[">>deu<<"]]
    # In the order of the paper's sinusoids.
    np.testing.assert_array_equal(vector[::2], expected[: D // 2])
    np.testing.assert_array_equal(vector[1::2], expected[D // 2 :])


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json"])
def test_a_language_may_have_been_added(tmp_path, name):
    """As `add_tokens` and `resize_token_embeddings` of Hugging Face do."""

    def write_added(tokens):
        if name == "tokenizer_config.json":
            tokens = {
                "added_tokens_decoder": {
                    str(row): {"content": token}
                    for token, row in tokens.items()
                }
            }
        (folder / name).write_text(json.dumps(tokens))

    folder = tmp_path / "marian"
    _, (ids, _), weights, _ = write_folder(folder)
    shared = weights["model.shared.weight"]
    row = len(shared)
    added = np.arange(1, D + 1, dtype="float32")
    weights["model.shared.weight"] = np.vstack([shared, added])
    bias = weights["final_logits_bias"]
    weights["final_logits_bias"] = np.hstack([bias, [[0.0]]]).astype("float32")
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    write_added({"</s>": ids["</s>"], ">>hsb<<": row})
    translator = kt.Translator.from_marian(folder)
    [first, *rest] = translator.encode([">>hsb<< the dog"])[0]
    assert translator.tokenizer.pieces[first] == "▁>>hsb<<"
    assert rest == translator.encode(["the dog"])[0]
    vector = translator.model.source_embedding.embeddings.numpy()[first]
    np.testing.assert_array_equal(vector[::2], added[: D // 2])
    write_added({"<ent>": row})
    with pytest.raises(ValueError, match="must be languages.*Received: '<ent>"):
        kt.Translator.from_marian(folder)


@pytest.mark.parametrize(
    "decoder",
    [[], {"9": {}}, {"9": "x"}, {"x": {}}, {"9": {"content": 5}}],
)
def test_damaged_tokens_that_were_added_are_refused(tmp_path, decoder):
    folder = tmp_path / "marian"
    write_folder(folder)
    config = json.dumps({"added_tokens_decoder": decoder})
    (folder / "tokenizer_config.json").write_text(config)
    message = "tokenizer_config.json must have ids .*Received: added_tokens_de"
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(folder)


def test_the_search_is_that_of_the_folder(tmp_path):
    folder = tmp_path / "marian"
    write_folder(folder)
    search = kt.Translator.from_marian(folder).search
    assert (search.width, search.length_penalty) == (3, 1.0)
    assert search.length_penalty_form == "power"
    assert search.patience is None
    (folder / "generation_config.json").write_text("{}")
    search = kt.Translator.from_marian(folder).search
    assert isinstance(search, kt.GreedySearch)
    settings = {"num_beams": 5, "length_penalty": 0.5, "early_stopping": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    search = kt.Translator.from_marian(folder).search
    assert (search.width, search.length_penalty) == (5, 0.5)
    assert (search.patience, search.no_repeat_ngram_size) == (1, 0)
    settings = {
        "num_beams": 1,
        "length_penalty": None,
        "no_repeat_ngram_size": 3,
    }
    (folder / "generation_config.json").write_text(json.dumps(settings))
    search = kt.Translator.from_marian(folder).search
    assert isinstance(search, kt.GreedySearch)
    assert search.no_repeat_ngram_size == 3
    (folder / "generation_config.json").write_text('{"num_beams": "4"}')
    message = r"generation_config\.json must say how to search .*`width` must"
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(folder)


def damaged(folder, name, **values):
    """Changes what a JSON file of the folder says; `...` is nothing."""
    path = folder / name
    content = {**json.loads(path.read_text()), **values}
    content = {key: x for key, x in content.items() if x is not ...}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("config.json", {"model_type": "bart"}, "Received: model_type='bart'"),
        ("config.json", {"model_type": ...}, "Received: no model_type in it"),
        ("config.json", {"normalize_before": True}, "normalize_before=False"),
        ("config.json", {"decoder_ffn_dim": 7}, "same ffn_dim .* 24 and 7"),
        ("config.json", {"activation_function": "x"}, "one of 'swish', .*'x'"),
        ("config.json", {"activation_function": []}, r"one of 'swish', .*\[\]"),
        (
            "config.json",
            {"d_model": "16"},
            "config.json must .* 1 as d_model.*'16'",
        ),
        ("config.json", {"d_model": 32}, "32 units here. Received: .*16"),
        ("config.json", {"encoder_layers": 3}, "none called model.enc"),
        (
            "config.json",
            {"encoder_layers": 1},
            r"say, 1 in the encoder. Received: model\.encoder\.layers\.1\.",
        ),
        (
            "config.json",
            {"dropout": "0"},
            "The model of .*/marian' must be a `Transfor.*: `dropout` must be",
        ),
        (
            "config.json",
            {"scale_embedding": "false"},
            "config.json must have true or false as scale_emb.*'false'",
        ),
        ("config.json", {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8}, "fc1.we"),
        ("vocab.json", {"▁": 99}, r"in \[0, .*Received: 99"),
        ("vocab.json", {"<unk>": ...}, "vocab.json must .*: no <unk> in it"),
        ("vocab.json", {"e": "5"}, "vocab.json must .* whole .*: '5' for 'e'"),
        ("vocab.json", {"e": -2}, "of at least 0 as ids. Received: -2 for 'e'"),
        ("config.json", {"decoder_start_token_id": "x"}, "config.*: 'x' for"),
        ("config.json", {"decoder_start_token_id": -7}, "-7 for 'decoder_st"),
        (
            "config.json",
            {
                "d_model": 15,
                "encoder_attention_heads": 3,
                "decoder_attention_heads": 3,
            },
            "vectors of an even size.*Received: d_model=15",
        ),
    ],
)
def test_what_is_no_such_model_is_named(tmp_path, name, values, message):
    folder = tmp_path / "marian"
    write_folder(folder)
    damaged(folder, name, **values)
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(folder)


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"junk", b"", "no weights"])
def test_weights_of_torch_are_read_or_named(tmp_path, content):
    torch = pytest.importorskip("torch")
    folder = tmp_path / "marian"
    _, _, weights, _ = write_folder(folder)
    expected = kt.Translator.from_marian(folder)(TEXTS)
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save({name: torch.tensor(x) for name, x in weights.items()}, path)
    assert kt.Translator.from_marian(folder)(TEXTS) == expected
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save([content], path)
    message = "the weights of a model .*refuses, .* that holds something else.$"
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(folder)


@pytest.mark.slow
def test_weights_of_torch_may_be_of_any_floats(tmp_path):
    torch = pytest.importorskip("torch")
    folder = tmp_path / "marian"
    *_, weights, _ = write_folder(folder)
    (folder / "model.safetensors").unlink()
    tensors = {name: torch.tensor(x) for name, x in weights.items()}
    name = "model.decoder.layers.0.fc1.weight"
    for tensor, dtype in (
        (tensors[name].bfloat16(), None),
        (tensors[name].to(torch.float8_e4m3fn), "uint8"),
        (tensors[name].int(), "int32"),
    ):
        others = {"unused": torch.arange(3), name: tensor}
        torch.save({**tensors, **others}, folder / "pytorch_model.bin")
        if dtype is None:
            kt.Translator.from_marian(folder)
            continue
        message = f"not quantised ones. Received: {dtype} for {name}"
        with pytest.raises(ValueError, match=message):
            kt.Translator.from_marian(folder)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("int8", "not quantised ones. Received: int8 for model.decoder"),
        ("complex64", "not quantised ones. Received: complex64 for mod"),
        (ml_dtypes.float8_e4m3fn, "numbers of a type that NumPy .*float8_e4m"),
    ],
)
def test_weights_of_other_numbers_are_refused(tmp_path, dtype, message):
    folder = tmp_path / "marian"
    *_, weights, _ = write_folder(folder)
    name = "model.decoder.layers.0.fc1.weight"
    weights[name] = weights[name].astype(dtype)
    path = folder / "model.safetensors"
    safetensors.numpy.save_file(weights, path)
    with pytest.raises(ValueError, match=f"safetensors must h.*{message}"):
        kt.Translator.from_marian(folder)


def test_the_vocabulary_of_another_model_is_refused(tmp_path):
    folder = tmp_path / "marian"
    _, (ids, _), *_ = write_folder(folder)
    others = [f"x{number}" for number in range(len(ids) - 3)]
    (folder / "vocab.json").write_text(json.dumps(numbered(others)))
    message = r"vocab.json must be the .* SentencePiece .*with 0 of \d+ pieces"
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(folder)


def test_files_that_are_missing_or_damaged_are_named(tmp_path, monkeypatch):
    folder = tmp_path / "marian"
    with pytest.raises(ValueError, match="on this machine.*'gs://bucket/x'"):
        kt.Translator.from_marian("gs://bucket/x")
    with pytest.raises(FileNotFoundError, match="No such file or .*marian'"):
        kt.Translator.from_marian(folder)
    write_folder(folder)
    (folder / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match="model.safetensors is damaged"):
        kt.Translator.from_marian(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="pytorch_model.bin"):
        kt.Translator.from_marian(folder)
    (folder / "model.safetensors").mkdir()  # a folder is no file either
    with pytest.raises(FileNotFoundError, match="pytorch_model.bin"):
        kt.Translator.from_marian(folder)
    (folder / "pytorch_model.bin").write_bytes(b"junk")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"needs torch, .*'.\[marian\]'"):
        kt.Translator.from_marian(folder)
    for content, reason in (
        ("{", "Expecting"),
        ("[" * 100_000, "it is nested"),
    ):
        (folder / "config.json").write_text(content)
        with pytest.raises(
            ValueError, match=f"config.json is damaged: {reason}"
        ):
            kt.Translator.from_marian(folder)
    for content in ("[]", "3"):
        (folder / "config.json").write_text(content)
        with pytest.raises(
            ValueError, match="config.json must hold names .*: one "
        ):
            kt.Translator.from_marian(folder)


@pytest.mark.slow
def test_the_command_converts_what_is_exported(tmp_path):
    write_folder(tmp_path / "marian")
    folder, file = tmp_path / "translator", tmp_path / "model.tflite"
    for arguments in (
        ["convert", tmp_path / "marian", folder],
        ["export", folder, file, "--no-steps"],
    ):
        subprocess.run(
            [sys.executable, "-m", "keras_transformer", *map(str, arguments)],
            check=True,
        )
    translator = kt.Translator.load(folder)
    assert LiteRTTranslator(file)(TEXTS) == translator(TEXTS)


@pytest.mark.slow
def test_translations_are_those_of_hugging_face(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "marian"
    _, (ids, _), weights, targets = write_folder(folder, is_shared=True)
    weights["final_logits_bias"][0, ids["</s>"]] = 2  # some targets end
    weights["final_logits_bias"][0, ids["<pad>"]] = -1e4
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    translator = kt.Translator.from_marian(folder)
    texts = [text for text in TEXTS if text]
    found, scores = translator(
        texts,
        max_length=20,
        search=kt.BeamSearch(4, 1.0, patience=1, length_penalty_form="power"),
        return_scores=True,
    )
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    pieces = {number: piece for piece, number in ids.items()}
    processor = sentencepiece.SentencePieceProcessor(model_proto=targets)
    for text, translation, score in zip(texts, found, scores, strict=True):
        source = [
            ids.get(piece, ids["<unk>"])
            for piece in processor.EncodeAsPieces(text)
        ]
        expected = model.generate(
            torch.tensor([[*source, ids["</s>"]]]),
            num_beams=4,
            early_stopping=True,
            max_length=21,
            return_dict_in_generate=True,
            output_scores=True,
        )
        content = [
            pieces[token_id]
            for token_id in expected.sequences[0].tolist()
            if token_id not in (ids["<pad>"], ids["</s>"])
        ]
        assert translation == processor.DecodePieces(content)
        assert score == pytest.approx(
            float(expected.sequences_scores[0]), abs=1e-3
        )
