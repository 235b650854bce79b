"""Vocabularies: learned, the same in Python and in graphs, saved, refused."""

import io
import re
import tracemalloc

import hypothesis
import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import strategies

import keras_transformer as kt
from keras_transformer.text import sentencepiece_model
from keras_transformer.text import vocabulary

KINDS = [
    pytest.param((model_type, byte_fallback), id=f"{model_type}{suffix}")
    for model_type in ("unigram", "bpe")
    for byte_fallback, suffix in ((False, ""), (True, "-bytes"))
]

ODD_TEXTS = {
    "empty": "",
    "blank": " ",
    "blanks": " \t \n ",
    "blanks around": "  the  museum ",
    "other blanks": "a\u00a0b\u3000c\u2009d\u200be\ufefff",
    "line ends": "a\nb\r\nc\u2028d\x85e",
    "emoji": "😀 the 👩\u200d👩\u200d👧 and 🇩🇪 👍🏽",
    "chinese": "今天是星期一。",
    "japanese": "ﾊﾟﾘ へ行く カタカナ",
    "korean": "한국어 \u1112\u1161\u11ab",
    "right to left": "مرحبا بالعالم \u202eשלום",
    "combining accent": "cafe\u0301 gru\u0308n",
    "many accents": "e" + "\u0301" * 20,
    "ligatures": "ﬁne ﬂour ĳs ﷺ ㍿",
    "fractions and widths": "½ ① Ｆｕｌｌ ℌ",
    "case that changes length": "İstanbul STRASSE straße",
    "null": "a\x00b\x00",
    "control characters": "\x01\x07a\x08\x1b[0m\x7f\x9f",
    "soft hyphen": "Jahr\u00adzehnt",
    "special pieces": "<s> </s> <pad> <unk> the</s>museum",
    "byte pieces": "<0x41> <0xE2><0x96><0x81>",
    "word mark": "▁the▁▁museum ▁",
    "unknown mark": " ⁇ the ⁇",
    "private use and unassigned": "\ue000\U000f0000\uffff\U0010ffff",
    "long word": "a" * 5_000,
    "long text": "the museum in Rome " * 500,
    "prefix": "m mu mus muse museu museum museums",
    "digits": "1999 3.14 1,000,000 ²³",
}


# The tokenizer of a test is the same for all its examples.
MANY_EXAMPLES = hypothesis.settings(
    max_examples=50,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def lines(english, german):
    return english + german


@pytest.fixture(scope="module", params=KINDS)
def model(request, lines):
    model_type, byte_fallback = request.param
    return kt.Tokenizer.train(
        lines,
        vocabulary_size=560 if byte_fallback else 300,
        model_type=model_type,
        byte_fallback=byte_fallback,
        verbose=0,
    ).model


@pytest.fixture
def trained(model):
    return kt.Tokenizer(model)


def pad_rows(rows):
    """Rows of ids with the end token, as a model gives them."""
    ended = [[*row, kt.Tokenizer.end_token_id] for row in rows]
    return tf.ragged.constant(ended, dtype="int32").to_tensor()


def assert_same_in_python_and_in_graphs(tokenizer, texts):
    rows = tokenizer.encode(texts)
    tensor = tokenizer.encode_tensor(tf.constant(texts))
    assert tensor.dtype == tf.int32
    assert tensor.to_list() == rows
    assert_same_text_in_python_and_in_graphs(tokenizer, rows)


def assert_same_text_in_python_and_in_graphs(tokenizer, rows):
    ids = pad_rows(rows)
    decoded = tokenizer.decode_tensor(ids).numpy()
    # Byte pieces in any order are not always UTF-8.
    texts = [text.decode("utf-8", "replace") for text in decoded]
    assert texts == tokenizer.decode(rows)
    assert tokenizer.decode(ids.numpy()) == texts


def other_tokenizer(lines, **options):
    """Trains as others do, with SentencePiece itself."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=200,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def test_special_ids(trained):
    assert trained.pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert trained.pad_token_id == 0
    assert trained.unknown_token_id == 1
    assert trained.start_token_id == 2
    assert trained.end_token_id == 3


def test_vocabulary_has_the_size_asked_for(trained):
    expected = 560 if "<0x00>" in trained.pieces else 300
    assert trained.vocabulary_size == expected
    assert len(trained.pieces) == expected
    assert len(set(trained.pieces)) == expected


def test_byte_fallback_is_read_from_the_model(lines):
    for options, has_bytes in (
        ({"model_type": "bpe"}, False),
        (
            {"byte_fallback": True, "vocabulary_size": 560},
            True,
        ),
    ):
        options = {"vocabulary_size": 300, "verbose": 0, **options}
        tokenizer = kt.Tokenizer.train(lines, **options)
        assert ("<0x00>" in tokenizer.pieces) == has_bytes
        assert not tokenizer.is_fast


def test_known_text_comes_back(trained, lines):
    assert trained.decode(trained.encode(lines)) == lines


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_odd_text_is_the_same_in_python_and_in_graphs(trained, text):
    assert_same_in_python_and_in_graphs(trained, [text])


def test_a_batch_is_the_same_as_its_texts_alone(trained):
    texts = list(ODD_TEXTS.values())
    assert_same_in_python_and_in_graphs(trained, texts)
    assert trained.encode(texts) == [trained.encode(text) for text in texts]


@hypothesis.given(
    strategies.lists(strategies.text(), min_size=1),
)
@MANY_EXAMPLES
def test_any_text_is_the_same_in_python_and_in_graphs(trained, texts):
    assert_same_in_python_and_in_graphs(trained, texts)


@hypothesis.given(
    strategies.text(
        alphabet="the museum<pads>/ ▁\u0301ß\x00\u200b⁇", min_size=1
    )
)
@MANY_EXAMPLES
def test_near_text_is_the_same_in_python_and_in_graphs(trained, text):
    assert_same_in_python_and_in_graphs(trained, [text])


@hypothesis.given(
    strategies.lists(
        strategies.lists(strategies.integers(4, 299), min_size=1, max_size=20),
        min_size=1,
        max_size=5,
    )
)
@MANY_EXAMPLES
def test_any_ids_are_the_same_text_in_python_and_in_graphs(trained, rows):
    rows = [[*row, trained.unknown_token_id, *row] for row in rows]
    assert_same_text_in_python_and_in_graphs(trained, rows)


def test_unknown_token_first_is_the_same_text_in_python_and_in_graphs(trained):
    unknown = trained.unknown_token_id
    rows = [[unknown], [unknown, unknown], [unknown, *trained.encode("the")]]
    assert_same_text_in_python_and_in_graphs(trained, rows)


def test_setting_a_seed_leaves_the_tensor_operations_as_they_are(trained):
    texts = ["The museum in Rome."]
    for seed in (1, 2):
        tf.random.set_seed(seed)  # forgets the kernels of all operations
        assert_same_in_python_and_in_graphs(trained, texts)


def test_graphs_end_a_target_where_python_does(trained):
    content = trained.encode("The museum in Rome.")
    rows = [[2, *content, 3, *content], [3, *content], [0, *content, 0, 0]]
    decoded = trained.decode_tensor(pad_rows(rows)).numpy()
    assert [text.decode() for text in decoded] == trained.decode(rows)


def test_same_ids_inside_a_function_of_unknown_batch_size(trained):
    texts = ["The museum in Rome.", "", "Das Museum"]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def there_and_back(texts):
        ids = trained.encode_tensor(texts)
        padded = trained.decode_tensor(ids.to_tensor())
        return ids, padded, trained.decode_tensor(ids)

    for batch in ([], texts[:1], texts):
        ids, *decoded = there_and_back(tf.constant(batch, tf.string))
        assert ids.to_list() == trained.encode(batch)
        for texts in decoded:
            assert [text.decode() for text in texts.numpy()] == batch


def test_special_pieces_in_text_are_plain_text(trained):
    ids = trained.encode("<s> </s> <pad> <unk>")
    specials = {trained.pad_token_id, trained.start_token_id}
    assert not {*specials, trained.end_token_id} & set(ids)


def test_empty_text_has_no_ids(trained):
    assert trained.encode("") == trained.encode("  \t ") == []
    assert trained.encode(["", " "]) == [[], []]
    assert trained.encode([]) == []
    assert trained.decode([]) == trained.decode(np.zeros(0, "int32")) == ""
    assert trained.decode([[], []]) == ["", ""]
    assert trained.decode(np.zeros((0, 5), "int32")) == []


@pytest.mark.parametrize("ids", [5, np.int32(5), np.array(5), None, [[5], 6]])
def test_ids_to_decode_are_a_sequence(trained, ids):
    with pytest.raises(TypeError, match="`ids` must be a sequence of ids, or"):
        trained.decode(ids)


@pytest.mark.parametrize("ids", [[4.0], [[4, 5.7]], ["4"], np.ones(2), [None]])
def test_ids_to_decode_are_integers(trained, ids):
    with pytest.raises(TypeError, match="`ids` must be integers. Received: "):
        trained.decode(ids)


def test_text_is_normalised(trained):
    assert trained.encode("Cafe\u0301  ﬁne ") == trained.encode("Café fine")


def test_unknown_characters_become_the_unknown_token(lines):
    tokenizer = kt.Tokenizer.train(lines, vocabulary_size=300, verbose=0)
    ids = tokenizer.encode("the 漢 museum")
    assert tokenizer.unknown_token_id in ids
    assert tokenizer.decode(ids) == "the  ⁇  museum"


def test_bytes_spell_unknown_characters(lines):
    tokenizer = kt.Tokenizer.train(
        lines, vocabulary_size=560, byte_fallback=True, verbose=0
    )
    ids = tokenizer.encode("the 漢😀 museum")
    assert tokenizer.unknown_token_id not in ids
    assert tokenizer.decode(ids) == "the 漢😀 museum"


def test_decode_stops_at_the_end(trained):
    ids = trained.encode("the museum")
    rest = trained.encode("in Rome")
    ended = [*ids, trained.end_token_id, *rest]
    assert trained.decode(ended) == "the museum"
    assert trained.decode([ended, rest]) == ["the museum", "in Rome"]


def test_decode_leaves_out_padding_and_start(trained):
    ids = trained.encode("the museum")
    start, pad = trained.start_token_id, trained.pad_token_id
    assert trained.decode([start, *ids, pad, pad]) == "the museum"
    assert trained.decode([[pad, start, *ids], [pad, pad]]) == [
        "the museum",
        "",
    ]


def test_decode_takes_arrays(trained):
    ids = trained.encode("the museum")
    assert trained.decode(np.asarray(ids)) == "the museum"
    assert trained.decode(np.asarray([ids], "int64")) == ["the museum"]
    assert trained.decode(tf.constant([ids])) == ["the museum"]
    assert trained.decode(tf.constant(ids)) == "the museum"
    assert trained.decode(np.zeros((2, 0), "int32")) == ["", ""]


@pytest.mark.parametrize("token_id", [-1, 300, 1_000_000])
def test_decode_refuses_ids_that_are_not_in_the_vocabulary(tokenizer, token_id):
    message = re.escape(f"in [0, 300). Received: id {token_id}.")
    with pytest.raises(ValueError, match=message):
        tokenizer.decode([4, token_id])
    with pytest.raises(ValueError, match=message):
        tokenizer.decode([[4, 5], [4, token_id]])


def test_texts_of_a_table_are_refused_and_its_missing_ones_named(tokenizer):
    message = r"Received: texts of type ndarray and shape \(1, 2\). Pass one"
    with pytest.raises(TypeError, match=message):
        tokenizer.encode(np.array([["the", "cat"]]))
    with pytest.raises(TypeError, match="Received: nan of type float at index"):
        tokenizer.encode(np.array(["the", np.nan], object))


@pytest.mark.parametrize(
    "texts", [[b"the"], ["the", None], [["the"]], b"the", 5]
)
def test_encode_refuses_what_is_no_string(tokenizer, texts):
    message = "`texts` must be a sequence of strings. Received: "
    with pytest.raises(TypeError, match=message):
        tokenizer.encode(texts)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (b"the \xc3 cat", "the ✗ cat"),
        (b"\xff\xfe the cat", "✗✗ the cat"),
        (b"\xf0\x9f\x98", "✗"),
    ],
)
def test_bytes_that_are_no_utf_8_are_unknown_characters(tokenizer, text, same):
    found = tokenizer.encode_tensor(tf.constant([text])).to_list()[0]
    assert found == tokenizer.encode(same)


@pytest.mark.parametrize("texts", ["the \udcff cat", ["the \udcff cat"]])
def test_encode_refuses_what_has_no_encoding(tokenizer, texts):
    message = r"Received: text 0 with '\\udcff' at 4."
    with pytest.raises(ValueError, match=message):
        tokenizer.encode(texts)


def test_pieces_are_drawn_and_the_text_is_the_same(tokenizer, lines):
    texts = lines[:100]
    drawn = tokenizer.sample(texts, seed=1)
    assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode(texts))
    assert tokenizer.sample(texts, seed=1) == drawn
    assert tokenizer.sample(texts, seed=np.int64(1)) == drawn
    assert tokenizer.sample(texts, seed=-1) != drawn
    assert tokenizer.sample(texts) != tokenizer.sample(texts)
    assert tokenizer.sample(texts[0], seed=1) == drawn[0]
    assert tokenizer.sample(["", texts[0]])[0] == tokenizer.sample("") == []


def test_keras_seed_makes_drawn_pieces_repeatable(tokenizer, lines):
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        drawn.append(tokenizer.sample(lines))
    assert drawn[0] == drawn[1]


def test_pieces_are_drawn_by_their_probability():
    """Of one word, against the shares of all of its segmentations."""
    word = "abc"
    tokenizer = kt.Tokenizer.train(
        ["a b c ab bc abc"] * 9, vocabulary_size=11, verbose=0
    )
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=tokenizer.model
    )
    best = processor.NBestEncode(word, nbest_size=64)
    assert len(best) > 2
    nats = [sum(map(processor.GetScore, ids)) for ids in best]
    for alpha in (0.1, 1.0):
        shares = np.exp(alpha * np.array(nats))
        shares /= shares.sum()
        drawn = tokenizer.sample([word] * 2000, alpha, seed=1)
        found = [drawn.count(ids) / len(drawn) for ids in best]
        np.testing.assert_allclose(found, shares, atol=0.04)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"alpha": 0}, ValueError, r"`alpha` must be in \(0, 1]. Rec.*alpha=0"),
        ({"alpha": 1.5}, ValueError, r"`alpha` must be in \(0, 1]"),
        ({"alpha": "0.3"}, TypeError, "`alpha` must be a number"),
        ({"seed": 0.5}, TypeError, "`seed` must be an integer"),
        ({"texts": ["the", 5]}, TypeError, "`texts` must be a sequence of"),
        ({"texts": "\udcff"}, ValueError, "Received: text 0 with"),
    ],
)
def test_what_cannot_be_drawn_from(tokenizer, options, kind, message):
    with pytest.raises(kind, match=message):
        tokenizer.sample(**{"texts": ["the museum"], **options})


def test_pieces_of_other_vocabularies_are_not_drawn(lines):
    tokenizer = kt.Tokenizer.train(lines, 300, "bpe", verbose=0)
    with pytest.raises(ValueError, match="unigram.*Received: .* of type bpe"):
        tokenizer.sample(lines)


@pytest.mark.parametrize(
    "given", ["file", "path", "files", "paths", "lines", "tuple", "generator"]
)
def test_learns_from_files_and_from_lines_alike(tmp_path, lines, given):
    first, second = tmp_path / "first", tmp_path / "second"
    middle = len(lines) // 2
    first.write_text("".join(f"{line}\n" for line in lines[:middle]))
    second.write_text("".join(f"{line}\n" for line in lines[middle:]))
    whole = tmp_path / "whole"
    whole.write_bytes(first.read_bytes() + second.read_bytes())
    text = {
        "file": str(whole),
        "path": whole,
        "files": [str(first), str(second)],
        "paths": (first, second),
        "lines": lines,
        "tuple": tuple(lines),
        "generator": (line for line in lines),
    }[given]
    options = {"vocabulary_size": 300, "model_type": "bpe", "verbose": 0}
    expected = kt.Tokenizer.train(iter(lines), **options)
    assert kt.Tokenizer.train(text, **options).pieces == expected.pieces


def test_the_same_text_gives_the_same_vocabulary(lines):
    options = {"vocabulary_size": 300, "verbose": 0}
    first, second = (kt.Tokenizer.train(lines, **options) for _ in range(2))
    assert first.pieces == second.pieces


def test_learns_from_lines_of_any_length():
    lines = ["a b c d e f g h " * 1_000, "", "a", "\x00", " "] * 3
    tokenizer = kt.Tokenizer.train(
        [*lines, *["abc def gh"] * 9], vocabulary_size=14, verbose=0
    )
    assert tokenizer.decode(tokenizer.encode("abc gh")) == "abc gh"


def test_learns_from_long_lines_too():
    lines = ["xylophone " * 1_000] * 5  # of 10,000 bytes
    options = {"vocabulary_size": 14, "model_type": "bpe", "verbose": 0}
    tokenizer = kt.Tokenizer.train(lines, **options)
    assert tokenizer.decode(tokenizer.encode("xylophone")) == "xylophone"


def test_a_long_line_is_learned_from_in_parts(monkeypatch):
    words = " ".join(str(number) for number in range(2_000))
    unbroken = words.replace(" ", "")
    assert [*vocabulary._parts(["a b", ""])] == ["a b", ""]
    for line in (words, unbroken):
        parts = [*vocabulary._parts([line])]
        assert "".join(parts) == line
        assert len(parts) == -(-len(line) // 4096)
    # Without a copy of the rest for each part.
    parts = vocabulary._parts(["a" * 10**6])
    tracemalloc.start()
    assert sum(map(len, parts)) == 10**6
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**5
    options = {"vocabulary_size": 20, "verbose": 0}
    lines = ["xylophone is a word " * 20]
    in_parts = [*map("".join, zip(*[iter(lines[0])] * 20, strict=True))]
    monkeypatch.setattr(vocabulary, "MAX_LINE_LENGTH", 20)
    whole = kt.Tokenizer.train(lines, **options)
    assert whole.pieces == kt.Tokenizer.train(in_parts, **options).pieces


def test_split_digits_gives_each_digit_a_piece():
    lines = ["in 1984 and 1985", "in 1984 again"] * 20
    options = {"vocabulary_size": 30, "model_type": "bpe", "verbose": 0}
    tokenizer = kt.Tokenizer.train(lines, split_digits=True, **options)
    pieces = [tokenizer.pieces[index] for index in tokenizer.encode("1984")]
    assert pieces[-4:] == ["1", "9", "8", "4"]
    whole = kt.Tokenizer.train(lines, **options)
    assert len(whole.encode("1984")) == 1


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_symbols_are_never_split(model_type):
    lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    tokenizer = kt.Tokenizer.train(
        lines,
        vocabulary_size=18,
        model_type=model_type,
        symbols=["<2de>", "a,b"],
        verbose=0,
    )
    assert not tokenizer.is_fast

    def symbols_in(ids):
        pieces = [tokenizer.pieces[index] for index in ids]
        return [piece for piece in pieces if piece in ("<2de>", "a,b")]

    for text in ("<2de> the cat", "the a,b", "<2de>a,b", "dog<2de>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert symbols_in(ids)
        for seed in range(20 if model_type == "unigram" else 0):
            drawn = tokenizer.sample(text, alpha=0.01, seed=seed)
            assert symbols_in(drawn) == symbols_in(ids)
        assert tokenizer.encode_tensor([text]).to_list() == [ids]
        assert tokenizer.decode_tensor([ids]).numpy() == [text.encode()]


@pytest.mark.parametrize(
    ("symbols", "kind", "message"),
    [
        (["<2 de>"], ValueError, "without spaces.* Received: '<2 de>'"),
        ([""], ValueError, "Received: ''"),
        (["<a>", "<b>", "<a>"], ValueError, "all different.* Received: '<a>'"),
        (["</s>"], ValueError, "none of <pad>, .* Received: '</s>'"),
        (["▁"], ValueError, "without spaces.* Received: '▁'"),
        (["a\ud800"], ValueError, "can be encoded. Received: symbol 0 with "),
        ([3], TypeError, "`symbols` must be a sequence of strings"),
        ("<2de>", TypeError, "`symbols` must be a sequence of strings"),
    ],
)
def test_symbols_that_cannot_be(symbols, kind, message):
    with pytest.raises(kind, match=message):
        kt.Tokenizer.train(["the cat"], symbols=symbols)


def test_lines_with_a_block_of_a_bar_chart_are_learned_from(lines):
    """SentencePiece skips those with what it writes for unknown characters."""
    options = {"vocabulary_size": 300, "verbose": 0}
    rare = [*lines, *["ξψω \u2585"] * 20]
    tokenizer = kt.Tokenizer.train(rare, **options)
    assert tokenizer.unknown_token_id not in tokenizer.encode("ξψω")
    every = [f"\u2585{line}" for line in lines]
    tokenizer = kt.Tokenizer.train(every, **options)
    assert tokenizer.unknown_token_id not in tokenizer.encode("museum")


def test_character_coverage_leaves_out_rare_characters(lines):
    options = {"vocabulary_size": 300, "verbose": 0}
    every = kt.Tokenizer.train([*lines, "漢"], **options)
    assert every.unknown_token_id not in every.encode("漢")
    most = kt.Tokenizer.train(
        [*lines, "漢"], character_coverage=0.9995, **options
    )
    assert most.unknown_token_id in most.encode("漢")
    assert most.unknown_token_id not in most.encode("museum")


# What NFKC changes: zero-width characters, a vowel, full-width signs.
SCRIPTS = [
    "می\u200cخواهم به خانه\u200cام بروم",
    "น้ำ ดื่ม",
    "你好，世界！",
    "ペンですか？",
    "ខ្ញុំ\u200bទៅ",
]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_text_may_be_kept_as_it_is(model_type):
    options = {"model_type": model_type, "verbose": 0}
    changed, kept = (
        kt.Tokenizer.train(iter(SCRIPTS * 9), 44, **options, **more)
        for more in ({}, {"normalization": "identity"})
    )
    ids = kept.encode(SCRIPTS)
    assert kept.decode(ids) == SCRIPTS
    assert kept.encode_tensor(SCRIPTS).to_list() == ids
    found = kept.decode_tensor(tf.ragged.constant(ids)).numpy()
    assert [text.decode() for text in found] == SCRIPTS
    for text, other in zip(
        SCRIPTS, changed.decode(changed.encode(SCRIPTS)), strict=True
    ):
        assert text != other


def test_case_may_be_folded(lines):
    tokenizer = kt.Tokenizer.train(
        lines, 200, normalization="nmt_nfkc_cf", verbose=0
    )
    assert tokenizer.encode("MUSEUM") == tokenizer.encode("museum")


def test_normalization_must_be_known(lines):
    message = (
        "`normalization` must be one of 'nmt_nfkc', .*: normalization='nfc'"
    )
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.train(lines, normalization="nfc", verbose=0)


@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("add_dummy_prefix", [True, False])
def test_spaces_that_a_vocabulary_keeps_are_joined_alike(
    normalization, add_dummy_prefix
):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["  a b  c"] * 20),
        model_writer=model,
        vocab_size=12,
        hard_vocab_limit=False,
        normalization_rule_name=normalization,
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_dummy_prefix,
        minloglevel=2,
    )
    tokenizer = kt.Tokenizer(
        sentencepiece_model.with_our_special_ids(model.getvalue())
    )
    rows = [
        *tokenizer.encode(["  a b", "   a", "a  b", " ", "    c "]),
        *np.random.default_rng(0).integers(4, 9, (50, 5)).tolist(),
    ]
    rows = [row for row in rows if row]
    found = tokenizer.decode_tensor(tf.ragged.constant(rows)).numpy()
    assert [text.decode() for text in found] == tokenizer.decode(rows)


def test_saved_and_loaded_tokenizer_is_the_same(trained, tmp_path):
    path = tmp_path / "new" / "vocabulary.model"
    trained.save(path)
    loaded = kt.Tokenizer.load(str(path))
    texts = list(ODD_TEXTS.values())
    assert loaded.pieces == trained.pieces
    assert loaded.model == trained.model
    assert loaded.encode(texts) == trained.encode(texts)
    assert loaded.encode_tensor(texts).to_list() == trained.encode(texts)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_save_replaces_a_file(tokenizer, tmp_path):
    path = tmp_path / "vocabulary.model"
    path.write_text("old")
    tokenizer.save(path)
    assert kt.Tokenizer.load(path).pieces == tokenizer.pieces


def test_sentencepiece_reads_what_is_saved(tokenizer, tmp_path):
    path = tmp_path / "vocabulary.model"
    tokenizer.save(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    text = "The museum in Rome."
    assert processor.encode(text) == tokenizer.encode(text)


def test_takes_a_model_of_sentencepiece_with_the_same_special_ids(lines):
    model = other_tokenizer(lines, pad_id=0, unk_id=1, bos_id=2, eos_id=3)
    tokenizer = kt.Tokenizer(model)
    assert tokenizer.vocabulary_size == 200
    assert tokenizer.decode(tokenizer.encode(lines[0])) == lines[0]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, "-1, 0, 1, 2"),
        ({"pad_id": 3, "unk_id": 0, "bos_id": 1, "eos_id": 2}, "3, 0, 1, 2"),
        ({"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": 2}, "0, 1, -1, 2"),
    ],
)
def test_refuses_other_special_ids(lines, tmp_path, options, found):
    model = other_tokenizer(lines, **options)
    message = (
        r"0 padding, 1 unknown, 2 start, 3 end\. Received: padding, unknown, "
        rf"start, end = {found}\. `Tokenizer\.from_sentencepiece` moves them"
    )
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer(model)
    path = tmp_path / "other.model"
    path.write_bytes(model)
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.load(path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pad_id": 3, "unk_id": 0, "bos_id": 1, "eos_id": 2},
        {"bos_id": -1, "eos_id": -1, "model_type": "bpe"},
        {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
        {"user_defined_symbols": "<sep>,<pad>", "unk_piece": "<u>"},
    ],
)
def test_special_ids_of_others_are_moved(lines, tmp_path, options):
    model = other_tokenizer(lines, **options)
    path = tmp_path / "other.model"
    path.write_bytes(model)
    found = kt.Tokenizer.from_sentencepiece(path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = [text for text in lines if "<pad>" not in text][:50] + ["§ <sep>"]
    for text, ids in zip(texts, found.encode(texts), strict=True):
        pieces = [
            theirs.unk_id() if theirs.is_unknown(i) else theirs.id_to_piece(i)
            for i in theirs.encode(text)
        ]
        assert [
            theirs.unk_id() if i == found.unknown_token_id else found.pieces[i]
            for i in ids
        ] == pieces
    assert_same_in_python_and_in_graphs(found, texts)


@pytest.mark.parametrize(
    "options",
    [
        {"treat_whitespace_as_suffix": True},
        {"user_defined_symbols": "\u2460,  "},
        {"add_dummy_prefix": False},
        {"normalization_rule_name": "identity"},
        {"normalization_rule_name": "nfkc"},  # which keeps tabs
        {"normalization_rule_name": "nmt_nfkc_cf"},
        {"remove_extra_whitespaces": False},
        {"model_type": "char"},
    ],
)
def test_other_ways_to_split_are_the_same_in_python_and_in_graphs(
    lines, options
):
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    tokenizer = kt.Tokenizer(other_tokenizer(lines, **ids, **options))
    texts = [*lines[:50], *ODD_TEXTS.values()]
    assert_same_in_python_and_in_graphs(tokenizer, texts)


def test_control_symbols_are_no_text(lines):
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    model = other_tokenizer(lines, **ids, control_symbols="<2de>")
    tokenizer = kt.Tokenizer(model)
    rows = [[tokenizer.pieces.index("<2de>"), *tokenizer.encode(lines[0])]]
    assert_same_text_in_python_and_in_graphs(tokenizer, rows)
    assert "<2de>" not in tokenizer.decode(rows[0])


def test_moving_special_ids_needs_a_model(tmp_path):
    path = tmp_path / "junk.model"
    path.write_bytes(b"junk")
    message = "junk.model: `model` must be a SentencePiece model. Received: 4"
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.from_sentencepiece(path)
    with pytest.raises(FileNotFoundError, match="No such file"):
        kt.Tokenizer.from_sentencepiece(tmp_path / "missing.model")


@pytest.mark.parametrize("junk", [b"", b"junk", b"\x00" * 1000, b"\xff" * 77])
def test_refuses_bytes_that_are_no_model(tmp_path, junk):
    message = f"must be a SentencePiece model. Received: {len(junk)} bytes"
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer(junk)
    path = tmp_path / "junk.model"
    path.write_bytes(junk)
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.load(path)


def test_refuses_a_damaged_model(tokenizer):
    for length in (1, len(tokenizer.model) // 2, len(tokenizer.model) - 1):
        with pytest.raises(ValueError, match="must be a SentencePiece model"):
            kt.Tokenizer(tokenizer.model[:length])


@pytest.mark.parametrize("model", ["vocabulary.model", None, 7])
def test_refuses_what_is_no_bytes(model):
    message = r"must be the bytes.*Received: model of type .*Tokenizer\.load"
    with pytest.raises(TypeError, match=message):
        kt.Tokenizer(model)


def test_load_names_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file.*missing.model"):
        kt.Tokenizer.load(tmp_path / "missing.model")


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_vocabulary_larger_than_the_text_allows(model_type):
    lines = ["the cat sees the dog", "the dog sees the cat"] * 10
    with pytest.raises(ValueError, match="at most [0-9]+ for this text") as at:
        kt.Tokenizer.train(
            lines, vocabulary_size=1000, model_type=model_type, verbose=0
        )
    assert "Received: vocabulary_size=1000, 20 lines." in str(at.value)
    largest = int(re.search(r"at most (\d+)", str(at.value))[1])
    tokenizer = kt.Tokenizer.train(
        lines, vocabulary_size=largest, model_type=model_type, verbose=0
    )
    assert tokenizer.vocabulary_size == largest


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_vocabulary_smaller_than_the_characters(lines, model_type):
    message = "at least [0-9]+ for the characters of this text"
    with pytest.raises(ValueError, match=message) as at:
        kt.Tokenizer.train(
            lines, vocabulary_size=20, model_type=model_type, verbose=0
        )
    assert "vocabulary_size=20, 1000 lines." in str(at.value)
    least = int(re.search(r"at least (\d+)", str(at.value))[1])
    tokenizer = kt.Tokenizer.train(
        lines, vocabulary_size=least, model_type=model_type, verbose=0
    )
    assert tokenizer.vocabulary_size == least


@pytest.mark.parametrize("size", [1, 3, 4])
def test_vocabulary_of_special_pieces_alone_is_too_small(lines, size):
    with pytest.raises(ValueError, match="`vocabulary_size` must be at least"):
        kt.Tokenizer.train(lines, vocabulary_size=size, verbose=0)


def test_byte_pieces_need_their_room(lines):
    with pytest.raises(ValueError, match=r"vocabulary.*vocabulary_size=200"):
        kt.Tokenizer.train(
            lines, vocabulary_size=200, byte_fallback=True, verbose=0
        )


@pytest.mark.parametrize("text", [[], [""], ["", " ", "\t"], iter(())])
def test_empty_text_is_an_error(text):
    message = r"Text must not be empty\. Received: \d lines without anything"
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.train(text, vocabulary_size=20, verbose=0)


def test_empty_file_is_an_error(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    with pytest.raises(ValueError, match="must not be empty. Received: 0 line"):
        kt.Tokenizer.train(path, verbose=0)


def test_a_sample_of_many_lines_is_the_same_each_time(lines, monkeypatch):
    monkeypatch.setattr(vocabulary, "MAX_TRAINING_LINES", len(lines) // 2)
    models = set()
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        models.add(kt.Tokenizer.train(lines, 300, verbose=0).model)
    assert len(models) == 1
    numbers = [str(number) for number in range(1000)]
    kept, count = vocabulary._sampled(iter(numbers), 100)
    assert (len(kept), len(set(kept)), count) == (100, 100, 1000)
    assert 400 < np.mean([*map(int, kept)]) < 600
    assert vocabulary._sampled(numbers, 1000) == (numbers, 1000)


@pytest.mark.parametrize("error", [EOFError, KeyboardInterrupt, RuntimeError])
def test_what_ends_the_text_ends_training(lines, error):
    def text():
        yield from lines
        raise error("no more")

    with pytest.raises(error, match="no more"):
        kt.Tokenizer.train(text(), 300, verbose=0)


@pytest.mark.parametrize("coverage", [0, -0.5, 1.01, float("nan")])
def test_character_coverage_out_of_range(lines, coverage):
    message = rf"in \[0.98, 1\].*Received: character_coverage={coverage}\."
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.train(lines, character_coverage=coverage, verbose=0)


@pytest.mark.parametrize("name", ["byte_fallback", "split_digits"])
def test_flags_of_another_kind(lines, name):
    with pytest.raises(TypeError, match=f"`{name}` must be True or False"):
        kt.Tokenizer.train(lines, verbose=0, **{name: "no"})


def test_character_coverage_of_another_kind(lines):
    with pytest.raises(
        TypeError, match="`character_coverage` must be a number"
    ):
        kt.Tokenizer.train(lines, character_coverage="1", verbose=0)


def test_text_to_learn_from_has_an_encoding(lines):
    message = r"must be Unicode .*Received: line 2 with '.udcff' at 4\."
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.train([lines[0], "the \udcff", *lines], 300, verbose=0)


def test_unknown_model_type(lines):
    message = "one of 'unigram', 'bpe'. Received: model_type='word'"
    with pytest.raises(ValueError, match=message):
        kt.Tokenizer.train(lines, model_type="word", verbose=0)


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "`vocabulary_size` must be at least 1"),
        (300.0, TypeError, "`vocabulary_size` must be an integer"),
        ("300", TypeError, "`vocabulary_size` must be an integer"),
    ],
)
def test_vocabulary_size_of_the_wrong_kind(lines, size, error, message):
    with pytest.raises(error, match=message):
        kt.Tokenizer.train(lines, vocabulary_size=size, verbose=0)


def test_error_in_the_text_is_what_the_user_sees(tmp_path):
    path = tmp_path / "latin1"
    path.write_bytes("the museum\ngrün\n".encode("latin1"))
    with pytest.raises(ValueError, match="^Text must be UTF-8.*line 2.*"):
        kt.Tokenizer.train(path, verbose=0)
    path.write_text("the museum\n")
    with pytest.raises(FileNotFoundError, match="^No such file: .*missing'.$"):
        kt.Tokenizer.train([path, tmp_path / "missing"], verbose=0)
    with pytest.raises(TypeError, match="^Lines must be strings. Received: 7"):
        kt.Tokenizer.train(["the museum", 7], verbose=0)


def test_training_is_silent_without_verbose(lines, capfd):
    kt.Tokenizer.train(lines, vocabulary_size=300, verbose=0)
    assert capfd.readouterr() == ("", "")
