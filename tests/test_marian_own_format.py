"""A Marian model in its own format computes here what Marian computes.

The expected numbers are Marian's: version 1.12.42 gave them for the files that
`write_model` writes, as `test_marian_says_so_itself` finds wherever pymarian,
its Python package, is installed.
"""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import yaml
from sentencepiece import sentencepiece_model_pb2

import keras_transformer as kt
from keras_transformer import cli
from keras_transformer.marian import own_format

D, F = 16, 24
PIECES = ["▁", *"abcde", "▁ab", "▁cd", "de"]
SOURCES = ["abcde", "a cd ab", "ab x de", "e e e d c"]  # "x" is in no piece
TARGETS = ["cd", "ab e", "de", "abc"]
MODEL = {
    "type": "transformer",
    "dim-emb": D,
    "enc-depth": 2,
    "dec-depth": 1,
    "transformer-heads": 2,
    "transformer-dim-ffn": F,
    "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0,
    "transformer-decoder-dim-ffn": 0,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "tied-embeddings": False,
    "tied-embeddings-all": True,
    "tied-embeddings-src": False,
    "output-omit-bias": False,
}
KINDS = {
    "usual": {},
    "normalized first": {
        "transformer-preprocess": "n",
        "transformer-postprocess": "da",
        "transformer-postprocess-top": "n",
    },
    "nothing tied": {"tied-embeddings-all": False},
    "target tied": {
        "tied-embeddings-all": False,
        "tied-embeddings": True,
        "transformer-ffn-activation": "relu",
    },
    "inputs tied": {
        "tied-embeddings-all": False,
        "tied-embeddings-src": True,
        "output-omit-bias": True,
    },
}
# Of `marian score`, in nats, for the pairs of SOURCES and TARGETS.
SCORES = {
    "usual": [-7.050051, -9.675224, -8.181379, -10.457808],
    "normalized first": [-4.571546, -11.607552, -8.186428, -9.186152],
    "nothing tied": [-6.161023, -12.742786, -7.645141, -9.908189],
    "target tied": [-2.661252, -12.145657, -9.992465, -8.730992],
    "inputs tied": [-8.477512, -10.113798, -6.508427, -11.426305],
}
# Of `marian decode --beam-size 3 --normalize 0.6`, for the usual kind.
TRANSLATIONS = ["eeeeeeeeee", "", "eeeeeeeeee", "e"]


def sentencepiece_model(pieces=PIECES):
    """A unigram model with Marian's special pieces, made without training."""
    model = sentencepiece_model_pb2.ModelProto()
    kind = model.SentencePiece
    model.pieces.add(piece="</s>", type=kind.CONTROL)
    model.pieces.add(piece="<unk>", type=kind.UNKNOWN)
    for number, piece in enumerate(pieces):
        model.pieces.add(piece=piece, score=-1 - number / 8)
    settings = model.trainer_spec
    settings.model_type = settings.UNIGRAM
    settings.vocab_size = len(model.pieces)
    settings.eos_id, settings.unk_id = 0, 1
    settings.bos_id = settings.pad_id = -1
    model.normalizer_spec.name = "identity"
    return model.SerializeToString()


def random_arrays(settings):
    """By Marian's names; a matrix has a column for each output."""
    state = np.random.RandomState(8)  # whose numbers stay the same
    arrays = {}

    def add(name, *shape, mean=0.0, deviation=0.3):
        array = state.normal(mean, deviation, shape)
        arrays[name] = array.astype("float32")

    def add_norm(name, mark):
        add(f"{name}_scale{mark}", 1, D, mean=1.0)
        add(f"{name}_bias{mark}", 1, D)

    size = 2 + len(PIECES)
    ties_all = settings["tied-embeddings-all"]
    if ties_all or settings["tied-embeddings-src"]:
        add("Wemb", size, D)
    else:
        add("encoder_Wemb", size, D)
        add("decoder_Wemb", size, D)
    if not ties_all and not settings["tied-embeddings"]:
        add("decoder_ff_logit_out_Wt", size, D)
    if not settings["output-omit-bias"]:
        add("decoder_ff_logit_out_b", 1, size)
        arrays["decoder_ff_logit_out_b"][0, 0] = 1.5  # some targets end
    mark = "_pre" if settings["transformer-preprocess"] else ""
    for stack, depth, parts in (
        ("encoder", settings["enc-depth"], ["self"]),
        ("decoder", settings["dec-depth"], ["self", "context"]),
    ):
        for number in range(1, depth + 1):
            layer = f"{stack}_l{number}"
            for part in parts:
                for letter in "qkvo":
                    add(f"{layer}_{part}_W{letter}", D, D)
                    add(f"{layer}_{part}_b{letter}", 1, D)
                add_norm(f"{layer}_{part}_Wo_ln", mark)
            add(f"{layer}_ffn_W1", D, F)
            add(f"{layer}_ffn_b1", 1, F)
            add(f"{layer}_ffn_W2", F, D)
            add(f"{layer}_ffn_b2", 1, D)
            add_norm(f"{layer}_ffn_ffn_ln", mark)
        if mark:
            add_norm(f"{stack}_top_ln", "")
    return arrays


def write_model(folder, arrays=None, search=(), **changes):
    """Writes what training a model with Marian leaves; gives its settings.

    Args:
        folder: Is made.
        arrays: Weights, if not those of the settings.
        search: Changes of `decoder.yml`.
        **changes: Changes of the model's settings, with `_` for `-`.
    """
    folder.mkdir(exist_ok=True)
    changes = {name.replace("_", "-"): x for name, x in changes.items()}
    settings = {**MODEL, **changes}
    if arrays is None:
        arrays = random_arrays(settings)
    size = 2 + len(PIECES)
    content = yaml.safe_dump({**settings, "dim-vocabs": [size, size]})
    # Marian writes it as C does, with zeros at the end.
    content = np.frombuffer(content.encode() + bytes(8), "int8")
    np.savez(folder / "model.npz", **arrays, **{"special:model.yml": content})
    (folder / "vocab.spm").write_bytes(sentencepiece_model())
    path = folder / "model.npz.decoder.yml"
    # Names are those of the folder that Marian was started in.
    search = {
        "models": ["run/model.npz"],
        "vocabs": ["run/vocab.spm", "run/vocab.spm"],
        "beam-size": 3,
        "normalize": 0.6,
        "word-penalty": 0,
        "relative-paths": False,
        **dict(search),
    }
    path.write_text(yaml.safe_dump(search))
    return path


def of_kind(kind):
    return {name.replace("-", "_"): x for name, x in KINDS[kind].items()}


def pymarian(command, folder, *arguments, lines=""):
    process = subprocess.run(
        [
            *(sys.executable, "-m", "pymarian", command, "--quiet"),
            *("--cpu-threads", "1", "-m", "model.npz"),
            *("--vocabs", "vocab.spm", "vocab.spm", *arguments),
        ],
        cwd=folder,
        input=lines,
        check=True,
        capture_output=True,
        text=True,
    )
    return process.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_marian_says_so_itself(tmp_path, kind):
    pytest.importorskip("pymarian")
    write_model(tmp_path, **of_kind(kind))
    for name, lines in (("a", SOURCES), ("b", TARGETS)):
        (tmp_path / name).write_text("\n".join([*lines, ""]))
    scores = pymarian("score", tmp_path, "--train-sets", "a", "b")
    assert [float(score) for score in scores] == pytest.approx(SCORES[kind])
    if kind == "usual":
        found = pymarian(
            *("decode", tmp_path, "--beam-size", "3", "--normalize", "0.6"),
            lines="\n".join([*SOURCES, ""]),
        )
        assert found == TRANSLATIONS


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_marian(untraced, tmp_path, kind):
    path = write_model(tmp_path, **of_kind(kind))
    translator = kt.Translator.from_marian(path)
    totals, _ = translator.score(SOURCES, TARGETS)
    np.testing.assert_allclose(totals, SCORES[kind], atol=2e-5)


def test_translations_are_those_of_marian(tmp_path):
    write_model(tmp_path)
    # The folder has one `decoder.yml`.
    translator = kt.Translator.from_marian(tmp_path)
    assert translator(SOURCES) == TRANSLATIONS
    search = translator.search
    assert (search.width, search.length_penalty) == (3, 0.6)
    assert search.length_penalty_form == "power"
    assert search.forbidden_token_ids == (1,)  # which Marian never chooses


def test_files_beside_the_settings_come_first(untraced, tmp_path):
    """Not those of the folder that Marian was started in, which may be new."""
    arrays = random_arrays(MODEL)
    arrays["decoder_ff_logit_out_b"] += 1
    write_model(tmp_path / "a", {**arrays, "Wemb": 2 * arrays["Wemb"]})
    search = {
        "models": [str(tmp_path / "a/model.npz")],
        "vocabs": [str(tmp_path / "a/vocab.spm")] * 2,
        "allow-unk": True,
    }
    path = write_model(tmp_path / "b", search=search)
    translator = kt.Translator.from_marian(path)
    totals, _ = translator.score(SOURCES, TARGETS)
    np.testing.assert_allclose(totals, SCORES["usual"], atol=2e-5)
    assert translator.search.forbidden_token_ids == ()
    (tmp_path / "b/model.npz").unlink()
    totals, _ = kt.Translator.from_marian(path).score(SOURCES, TARGETS)
    assert abs(totals - SCORES["usual"]).max() > 0.1


def test_an_opus_model_has_its_vocabulary_in_another_file(untraced, tmp_path):
    """Its rows are of any order, and one names a language."""
    order = np.random.RandomState(1).permutation(2 + len(PIECES))
    arrays = random_arrays(MODEL)
    language = np.arange(D, dtype="float32")[None]
    arrays["Wemb"] = np.concatenate([arrays["Wemb"][order], language])
    bias = arrays["decoder_ff_logit_out_b"][:, order]
    arrays["decoder_ff_logit_out_b"] = np.pad(bias, ((0, 0), (0, 1)))
    search = {"vocabs": ["opus.vocab.yml"] * 2, "beam-size": 1}
    path = write_model(tmp_path, arrays, search)
    pieces = ["</s>", "<unk>", *PIECES]
    ids = {pieces[piece]: row for row, piece in enumerate(order.tolist())}
    ids[">>fra<<"] = len(ids)
    lines = [f"{json.dumps(piece)}: {row}" for piece, row in ids.items()]
    # As Marian writes pieces: without quotes, whatever YAML takes them for;
    # with `dim-vocabs`, there are more than rows.
    lines += [
        f"{x}: {len(ids) + 9}" for x in ("1", "010", "yes", "<<", "~", "1:2")
    ]
    (tmp_path / "opus.vocab.yml").write_text("\n".join(lines))
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(sentencepiece_model())
    translator = kt.Translator.from_marian(path)
    assert isinstance(translator.search, kt.GreedySearch)
    totals, _ = translator.score(SOURCES, TARGETS)
    np.testing.assert_allclose(totals, SCORES["usual"], atol=2e-5)
    [[first, *rest]] = translator.encode([">>fra<< abcde"])
    assert rest == translator.encode(["abcde"])[0]
    vectors = translator.model.source_embedding.embeddings.numpy()
    np.testing.assert_array_equal(vectors[first], language[0])
    for content, message in (("{}", "no <unk> in it"), ("a: x", "'x' for 'a'")):
        (tmp_path / "opus.vocab.yml").write_text(content)
        with pytest.raises(
            ValueError, match=f"opus.vocab.yml must .*{message}"
        ):
            kt.Translator.from_marian(path)


def test_a_vocabulary_may_be_json_as_python_writes_it(tmp_path):
    path = tmp_path / "vocab.json"
    ids = {"</s>": 0, "<unk>": 1, "\N{GRINNING FACE}": 2, "7": 3}
    path.write_text(json.dumps(ids))
    assert r"\ud83d" in path.read_text()
    assert own_format._read_vocabulary(str(path)) == ids
    path.write_text("</s>: 0\n<unk>: 1\n")  # whatever Marian reads
    assert own_format._read_vocabulary(str(path)) == {"</s>": 0, "<unk>": 1}
    path.write_text("{")
    with pytest.raises(ValueError, match="vocab.json is damaged"):
        own_format._read_vocabulary(str(path))


def test_a_folder_of_several_models_needs_a_choice(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json, .*decoder.yml"):
        kt.Translator.from_marian(tmp_path)
    path = write_model(tmp_path)
    (tmp_path / "best.npz.decoder.yml").write_bytes(path.read_bytes())
    message = "pass the path .*with best.npz.decoder.yml, model.npz.decoder"
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "s2s"}, "model.npz must have type=transformer.*type='s2s'"),
        ({"transformer_decoder_autoreg": "rnn"}, "=self-attention.*='rnn'"),
        ({"transformer_train_position_embeddings": True}, "=False.*=True"),
        ({"transformer_tied_layers": [1, 1]}, r"layers=\[\].*\[1, 1\]"),
        ({"transformer_decoder_dim_ffn": 8}, "dim-ffn=24.*dim-ffn=8"),
        ({"transformer_ffn_activation": "gelu"}, "one of 'swish', .*'gelu'"),
        ({"transformer_postprocess": "dnan"}, "as the paper.*'dnan'"),
        ({"transformer_preprocess": "n"}, "as the paper.*preprocess': 'n'"),
        ({"enc_depth": "2"}, "model.npz must .* at least 1 as enc-depth.*'2'"),
        ({"transformer_decoder_ffn_depth": 1}, "decoder-ffn-depth=2.*depth=1"),
        ({"enc_depth": None}, "Received: no enc-depth in it"),
        ({"enc_depth": 3}, "none called encoder_l3_self_Wq"),
        ({"enc_depth": 1}, "say, 1 in the encoder. Received: encoder_l2_"),
        ({"tied_embeddings_all": "no"}, "true or false as tied-em.*all.*'no'"),
        ({"dim_emb": 32}, "that the settings .* 32 units here. .*16"),
        ({"transformer_heads": 3}, "Received: hidden_dim=16, num_heads=3"),
    ],
)
def test_a_model_of_another_kind_is_refused(tmp_path, changes, message):
    arrays = random_arrays(MODEL)
    path = write_model(tmp_path, arrays, **changes)
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(path)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"models": ["model.npz"] * 2}, "a list of 1 as models; .*ensembles"),
        ({"models": "model.npz"}, "a list of 1 as models.*'model.npz'"),
        ({"models": None}, "decoder.yml must be .*no models in it"),
        ({"vocabs": ["vocab.spm"]}, "a list of 2 as vocabs"),
        ({"vocabs": ["vocab.spm", "vocab.yml"]}, "of one kind, .spm or .yml"),
        ({"vocabs": ["junk.npz"] * 2}, "with source.spm and target.spm beside"),
        (
            {"vocabs": ["small.spm"] * 2},
            "small.spm .* weights, 11. .*: 10 piec",
        ),
        ({"vocabs": ["pad.spm"] * 2}, "pad.spm must not have a .* '<pad>'"),
        ({"models": ["vocab.yml"]}, "must be a .npz file.*vocab.yml"),
        ({"models": ["one.npz"]}, "one.npz is damaged: "),
        ({"models": ["text.npz"]}, "text.npz is damaged: special:mod.* no arr"),
        ({"models": ["huge.npz"]}, "huge.npz is damaged: "),
        ({"models": ["open.npz"]}, "open.npz is damaged: "),
        ({"models": ["moved.npz"]}, "moved.npz is damaged: .*Invalid argument"),
        ({"models": ["junk.npz"]}, "junk.npz is damaged: "),
        ({"models": ["other.npz"]}, "other.npz .* none called special:model"),
        ({"word-penalty": 0.5}, "word-penalty=0. Received: word-penalty=0.5"),
        ({"beam-size": "x"}, "decoder.yml must .*: beam-size='x', normalize=0"),
        ({"normalize": True}, "beam-size=3, normalize=True: `length_penalty`"),
    ],
)
def test_settings_that_cannot_be_followed_are_named(tmp_path, search, message):
    path = write_model(tmp_path, search=search)
    (tmp_path / "vocab.yml").write_text("a: 1")
    with open(tmp_path / "one.npz", "wb") as file:
        np.save(file, np.zeros(3))
    (tmp_path / "junk.npz").write_bytes(b"junk")
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d,)}\n"
    header = (header % 10**30).encode()
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    for name, member, content in (
        ("text", "special:model.yml", b"type: transformer"),
        ("huge", "x.npy", start + header),
        ("open", "x.npy", start + b"(" * len(header)),
    ):
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w") as file:
            file.writestr(member, content)
    # Where the list of members is said to begin, beyond where it does.
    content = bytearray((tmp_path / "model.npz").read_bytes())
    place = content.rindex(b"PK\x05\x06") + 16
    begin = int.from_bytes(content[place : place + 4], "little") + 100
    content[place : place + 4] = begin.to_bytes(4, "little")
    (tmp_path / "moved.npz").write_bytes(content)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    (tmp_path / "small.spm").write_bytes(sentencepiece_model(PIECES[:-1]))
    pieces = [*PIECES[:-1], "<pad>"]
    (tmp_path / "pad.spm").write_bytes(sentencepiece_model(pieces))
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(path)


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    path = write_model(tmp_path)
    other = tmp_path / "other.decoder.yml"
    # Each list holds the one before nine times.
    lists = "".join(f"- &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 9))
    for content in (
        "[",
        "\x00",
        "a: 2020-13-02",
        "a: !!bool x",
        "a: !!int ''",
        "a: !!timestamp x",
        "a: 1" + ":59" * 200 + ".0",
        "[" * 15,
    ):
        other.write_text(content)
        with pytest.raises(ValueError, match="other.* is damaged: "):
            kt.Translator.from_marian(other)
    # Or what libyaml says by itself, from 0.2.6 on.
    deep = r" Received: more than 20 levels\.|: .*maximum nesting depth"
    for content, found in (
        (f"models:\n- &a0 [x]\n{lists}", r": \*a0"),
        ("[" * 100_000, deep),
        (f"a: {'[' * 100_000}{']' * 100_000}", deep),
    ):
        other.write_text(content)
        with pytest.raises(ValueError, match=f"other.*({found})"):
            kt.Translator.from_marian(other)
    for content in ("3", "- a"):
        other.write_text(content)
        with pytest.raises(ValueError, match="other.* must hold names and va"):
            kt.Translator.from_marian(other)
    model = tmp_path / "model.npz"
    content = model.read_bytes()
    for damaged in (
        content[:-400],
        content[:2000] + b"x" + content[2001:],
        b"",
    ):
        model.write_bytes(damaged)
        with pytest.raises(ValueError, match="model.npz is damaged: "):
            kt.Translator.from_marian(path)
    with pytest.raises(ValueError, match="that of the decoder.yml beside"):
        kt.Translator.from_marian(model)
    (tmp_path / "vocab.spm").unlink()
    model.write_bytes(content)
    with pytest.raises(FileNotFoundError, match="vocab.spm"):
        kt.Translator.from_marian(path)
    model.unlink()
    with pytest.raises(FileNotFoundError, match="model.npz"):
        kt.Translator.from_marian(path)


def test_weights_that_are_quantised_are_refused(tmp_path):
    arrays = random_arrays(MODEL)
    arrays["Wemb"] = arrays["Wemb"].astype("int8")
    message = "not quantised ones. Received: int8 for Wemb"
    with pytest.raises(ValueError, match=message):
        kt.Translator.from_marian(write_model(tmp_path, arrays))


def test_the_command_converts_it(tmp_path, monkeypatch, capsys):
    path, output = write_model(tmp_path / "run"), tmp_path / "translator"
    command = ["keras-transformer", "convert", str(path), str(output)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert "2 + 1 layers, 16 wide, 13 source" in capsys.readouterr().err
    translator = kt.Translator.load(output)
    assert translator(SOURCES) == TRANSLATIONS
