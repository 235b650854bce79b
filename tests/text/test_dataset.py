"""Batches for `fit`: what is in them, how many, in which order."""

import collections
import dataclasses
import re
import tracemalloc

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

import keras_transformer as kt
from keras_transformer.text import dataset as dataset_module
from keras_transformer.text.corpus import length_buckets

START, END = kt.Tokenizer.start_token_id, kt.Tokenizer.end_token_id
TOKENS_PER_BATCH = 512
MAX_LENGTH = 64


@pytest.fixture
def make(tokenizer):
    def make(source, target=None, tokenizer=tokenizer, **options):
        defaults = {
            "tokens_per_batch": TOKENS_PER_BATCH,
            "max_length": MAX_LENGTH,
            "verbose": 0,
        }
        return kt.translation_dataset(
            source, target, tokenizer, **{**defaults, **options}
        )

    return make


def batches(dataset):
    return [
        (
            inputs["source_ids"].numpy(),
            inputs["target_ids"].numpy(),
            labels.numpy(),
            weights.numpy(),
        )
        for inputs, labels, weights in dataset
    ]


def ids_of(row):
    """A row of ids without its padding."""
    return tuple(row[row != 0].tolist())


def pairs_in(dataset):
    """Source and labels of every row that is no filler."""
    return [
        (ids_of(source), ids_of(label))
        for sources, _, labels, _ in batches(dataset)
        for source, label in zip(sources, labels, strict=True)
        if source.any()
    ]


def expected_pairs(tokenizer, source, target, target_tokenizer=None):
    target_tokenizer = target_tokenizer or tokenizer
    return [
        ((*tokenizer.encode(one), END), (*target_tokenizer.encode(other), END))
        for one, other in zip(source, target, strict=True)
    ]


def kept(pairs, max_length=MAX_LENGTH):
    return [pair for pair in pairs if max(map(len, pair)) <= max_length]


def same_order(first, second):
    return pairs_in(first) == pairs_in(second)


def test_element_has_two_sources_labels_and_weights(make, english, german):
    dataset = make(english, german)
    inputs, labels, weights = dataset.element_spec
    assert sorted(inputs) == ["source_ids", "target_ids"]
    for spec in (*inputs.values(), labels, weights):
        assert spec.shape.rank == 2
    assert inputs["source_ids"].dtype == inputs["target_ids"].dtype == tf.int32
    assert labels.dtype == tf.int32
    assert weights.dtype == tf.float32


def test_source_and_target_of_a_batch_have_one_shape(make, english, german):
    for source, target, labels, weights in batches(make(english, german)):
        assert source.shape == target.shape == labels.shape == weights.shape


def test_rows_times_length_fill_tokens_per_batch(make, english, german):
    shapes = {batch[0].shape for batch in batches(make(english, german))}
    for rows, length in shapes:
        assert rows == TOKENS_PER_BATCH // length
        assert length in length_buckets(MAX_LENGTH)


def test_few_shapes(make, english, german):
    shapes = collections.Counter(
        batch[0].shape for batch in batches(make(english, german))
    )
    assert 2 < len(shapes) <= len(length_buckets(MAX_LENGTH))


def test_target_starts_with_start_and_labels_end_with_end(
    make, english, german
):
    for source, target, labels, _ in batches(make(english, german)):
        for source_row, target_row, label_row in zip(
            source, target, labels, strict=True
        ):
            if not source_row.any():
                continue
            length = len(ids_of(target_row))
            assert target_row[0] == START
            assert label_row[length - 1] == END
            assert ids_of(source_row)[-1] == END
            # Nothing special in between, and padding behind.
            assert not {START, END} & set(target_row[1:length])
            assert not target_row[length:].any()
            assert not label_row[length:].any()
            assert START not in source_row


def test_labels_are_targets_one_token_on(make, english, german):
    for _, target, labels, _ in batches(make(english, german)):
        # But for the end token, which only labels have.
        shifted = np.where(labels == END, 0, labels)
        np.testing.assert_array_equal(target[:, 1:], shifted[:, :-1])


def test_weights_are_1_at_labels_and_0_at_padding(make, english, german):
    for _, _, labels, weights in batches(make(english, german)):
        np.testing.assert_array_equal(weights, labels != 0)


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_kept_pair_appears_once_an_epoch(
    make, tokenizer, english, german, shuffle
):
    dataset = make(english, german, shuffle=shuffle)
    expected = kept(expected_pairs(tokenizer, english, german))
    assert len(expected) > 400
    for _ in range(2):
        assert sorted(pairs_in(dataset)) == sorted(expected)


def test_filler_rows_are_padding_without_weight(make, english, german):
    source, target = english[:3], german[:3]
    fillers = 0
    for source_ids, target_ids, labels, weights in batches(
        make(source, target)
    ):
        filler = ~source_ids.any(axis=1)
        fillers += filler.sum()
        for ids in (target_ids, labels, weights):
            assert not ids[filler].any()
            assert ids[~filler].any(axis=1).all()
        # They come last.
        assert list(filler) == sorted(filler)
    assert fillers


@pytest.mark.parametrize("count", [1, 4, 8, 15, 30])
def test_pair_is_padded_to_the_next_bucket(make, tokenizer, count):
    longer = "in " * count
    tokens = len(tokenizer.encode(longer)) + 1
    expected = min(b for b in length_buckets(MAX_LENGTH) if b >= tokens)
    for source, target in ((longer, "um"), ("in", longer)):
        ((source_ids, *_),) = batches(make([source], [target]))
        assert source_ids.shape[1] == expected


def test_longest_pair_is_kept_and_a_longer_one_dropped(make, tokenizer):
    text = "the museum in rome"
    tokens = len(tokenizer.encode(text)) + 1
    exact = make([text], [text], max_length=tokens)
    assert len(pairs_in(exact)) == 1
    ((source_ids, _, labels, _),) = batches(exact)
    assert source_ids.shape[1] == tokens
    assert source_ids[0].all() and labels[0].all()
    with pytest.raises(ValueError, match="No pair of sentences is left"):
        make([text], [text], max_length=tokens - 1)


def test_one_pair_fills_a_batch_of_its_length(make):
    dataset = make(["the"], ["das"], tokens_per_batch=8, max_length=8)
    ((source_ids, *_),) = batches(dataset)
    assert source_ids.shape == (1, 8)


def test_same_seed_gives_the_same_epochs(make, english, german):
    first = make(english, german, seed=5)
    tf.random.set_seed(1234)  # which has nothing to do with it
    second = make(english, german, seed=5)
    for _ in range(2):
        assert same_order(first, second)


def test_other_seed_gives_another_order(make, english, german):
    assert not same_order(
        make(english, german, seed=5), make(english, german, seed=6)
    )


def test_epochs_differ_with_a_seed_too(make, english, german):
    dataset = make(english, german, seed=5)
    assert not same_order(dataset, dataset)


def test_a_dataset_may_begin_with_a_later_epoch(make, english, german):
    whole = make(english, german, seed=5)
    orders = [pairs_in(whole) for _ in range(4)]
    rest = make(english, german, seed=5, initial_epoch=2)
    assert [pairs_in(rest) for _ in range(2)] == orders[2:]


def test_what_resumes_is_trained_on_the_same_batches(make, english, german):
    def new_model():
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("source_ids", "target_ids")
        }
        table = keras.layers.Embedding(999, 2, embeddings_initializer="ones")
        x = keras.layers.Dense(9, kernel_initializer="ones")(
            table(inputs["source_ids"]) + table(inputs["target_ids"])
        )
        model = keras.Model(inputs, x)
        model.compile(
            keras.optimizers.SGD(0.01),
            lambda labels, x: keras.ops.mean(x * x, axis=-1) * labels,
            weighted_metrics=[lambda labels, x: x[..., 0]],
            jit_compile=False,
        )
        return model

    def fit(model, epoch, epochs, **options):
        dataset = make(english[:99], german[:99], seed=5, **options)
        epochs = {"initial_epoch": epoch, "epochs": epochs}
        found = model.fit(dataset, **epochs, shuffle=False, verbose=0)
        return found.history["loss"]

    one, other, third = new_model(), new_model(), new_model()
    losses = fit(one, 0, 3)
    found = fit(other, 0, 1)
    third.set_weights(other.get_weights())
    found += fit(third, 1, 3, initial_epoch=1)
    assert found == losses
    assert fit(new_model(), 0, 1, initial_epoch=1) != losses[:1]


@pytest.fixture
def corpus(tokenizer, english, german):
    return dataset_module.read_corpus(
        english,
        german,
        tokenizer,
        tokens_per_batch=TOKENS_PER_BATCH,
        max_length=MAX_LENGTH,
        verbose=0,
    )


def one_pass(corpus, seed, number):
    of_pass = corpus.num_batches()
    return corpus.stretch(seed, number * of_pass, of_pass)


def test_order_of_a_pass_follows_from_seed_and_number(corpus):
    first = pairs_in(one_pass(corpus, 5, 3))
    tf.random.set_seed(1234)
    np.random.seed(1234)
    assert pairs_in(one_pass(corpus, 5, 3)) == first
    for other in (one_pass(corpus, 5, 4), one_pass(corpus, 6, 3)):
        assert pairs_in(other) != first
        assert sorted(pairs_in(other)) == sorted(first)


def test_epochs_of_a_dataset_are_those_of_the_command(corpus):
    shuffled = corpus.shuffled(5, initial_epoch=2)
    for number in (2, 3):
        assert pairs_in(shuffled) == pairs_in(one_pass(corpus, 5, number))
    assert pairs_in(corpus.shuffled(np.int64(-5))) == pairs_in(
        corpus.shuffled(-5)
    )
    with pytest.raises(TypeError, match="`seed` must be an integer.*2.5"):
        corpus.shuffled(2.5)


def test_a_stretch_of_batches_begins_and_ends_anywhere(corpus):
    of_pass = corpus.num_batches()
    assert of_pass > 13
    whole = [x for n in range(4) for x in batches(one_pass(corpus, 5, n))]
    for start, count in [
        (0, 1),
        (of_pass - 1, 1),
        (of_pass + 13, of_pass - 13),
        (1, 2 * of_pass + 1),
        (2 * of_pass - 1, of_pass + 2),
    ]:
        stretch = corpus.stretch(5, start, count)
        assert len(stretch) == count
        for found, expected in zip(
            batches(stretch), whole[start : start + count], strict=True
        ):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_batches_that_are_not_full_come_anywhere(corpus):
    """Not together at the end, where each would undo a part of an epoch."""
    places = []
    for epoch in range(8):
        full = [
            labels.any(axis=1).all()
            for _, _, labels, _ in batches(one_pass(corpus, 5, epoch))
        ]
        places += [
            place / len(full)
            for place, is_full in enumerate(full)
            if not is_full
        ]
    assert len(places) > 40
    assert 0.35 < np.mean(places) < 0.65


def test_orders_are_made_with_little_memory(corpus):
    pairs = 1_000_000
    lengths = np.random.default_rng(1).integers(2, MAX_LENGTH, pairs)
    corpus = dataclasses.replace(corpus, lengths=lengths)
    tracemalloc.start()
    found, starts, ends = corpus._grouped(np.random.default_rng(1))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 80 * pairs
    assert np.array_equal(np.sort(found), np.arange(pairs))
    assert np.sum(ends - starts) == pairs
    assert len(starts) == corpus.num_batches()


def test_without_seed_orders_differ(make, english, german):
    assert not same_order(make(english, german), make(english, german))


def test_keras_seed_makes_the_order_repeatable(make, english, german):
    orders = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        orders.append(pairs_in(make(english, german)))
    assert orders[0] == orders[1]


def test_shuffle_is_a_flag(make):
    with pytest.raises(TypeError, match="`shuffle` must be True or False"):
        make(["a"], ["b"], shuffle="no")


def test_without_shuffle_pairs_of_like_length_keep_their_order(
    make, tokenizer, english, german
):
    dataset = make(english, german, shuffle=False)
    buckets = length_buckets(MAX_LENGTH)

    def by_bucket(pairs):
        found = collections.defaultdict(list)
        for pair in pairs:
            longest = max(map(len, pair))
            found[min(b for b in buckets if b >= longest)].append(pair)
        return found

    expected = kept(expected_pairs(tokenizer, english, german))
    assert by_bucket(pairs_in(dataset)) == by_bucket(expected)
    assert same_order(dataset, dataset)


def test_cardinality_is_the_number_of_batches(make, english, german):
    for count in (1, 2, 100, 500):
        dataset = make(english[:count], german[:count])
        assert int(dataset.cardinality()) == len(batches(dataset))
        assert len(dataset) == len(batches(dataset))


def test_nothing_sleeps_beside_the_batches(make, english, german):
    # An iterator's end waits for what tunes a pipeline.
    assert make(english, german).options().autotune.enabled is False


def test_report_names_files_and_counts(tmp_path, make, capsys):
    source = tmp_path / "text.en"
    target = tmp_path / "text.de"
    source.write_text("the museum\n\nthe museum\n" + "the " * 200 + "\n")
    target.write_text("das Museum\ndas\n \ndas\n")
    dataset = make(str(source), target, verbose=1)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.strip() == (
        f"{source}, {target}: 4 pairs, 1 kept, 2 dropped as empty, "
        f"1 dropped as longer than {MAX_LENGTH} tokens with the end token"
    )
    assert len(pairs_in(dataset)) == 1


def test_rows_may_be_a_multiple_of_the_devices(make):
    lines = ["eins", "eins zwei", "eins zwei drei " * 6] * 5
    whole = list(make(lines, lines, seed=1))
    split = list(make(lines, lines, seed=1, num_devices=4))
    assert any(len(labels) % 4 for _, labels, _ in whole)
    for (_, labels, _), (inputs, more_labels, weights) in zip(
        whole, split, strict=True
    ):
        rows = len(labels)
        assert len(more_labels) == rows + -rows % 4
        np.testing.assert_array_equal(more_labels[:rows], labels)
        for rest in (inputs["source_ids"], more_labels, weights):
            assert not np.any(rest[rows:])
    with pytest.raises(ValueError, match="`num_devices` must be at least 1"):
        make(lines, lines, num_devices=0)


def test_report_says_what_the_vocabulary_does_not_know(make, capsys):
    make(["eins zwei"] * 3, ["ЖЖ eins", "eins", "zwei"], verbose=1)
    [report] = capsys.readouterr().err.strip().splitlines()[-1:]
    share = (
        r"lines: 3 pairs, 3 kept; \d+% of the target's tokens are unknown to"
    )
    assert re.match(share, report)
    assert "source" not in report


def test_report_is_short_where_nothing_is_dropped(make, capsys):
    make(["the museum"] * 1500, ["das Museum"] * 1500, verbose=1)
    assert capsys.readouterr().err.strip().endswith(": 1,500 pairs, 1,500 kept")


def test_silent_without_verbose(make, capfd):
    make(["the museum", ""], ["das Museum", ""])
    assert capfd.readouterr() == ("", "")


def test_one_iterator_is_not_two_texts(make, english):
    lines = iter(english)
    with pytest.raises(ValueError, match="the same list_iterator for both"):
        make(lines, lines)


@pytest.mark.parametrize(("more", "counts"), [(0, (500, 497)), (1, (497, 500))])
def test_unequal_line_counts_are_both_named(
    make, english, german, more, counts
):
    sides = [english[:497], german[:497]]
    sides[more] = (english, german)[more]
    message = (
        "must have the same number of lines. Received: "
        rf"{counts[0]} lines in source \(lines\), "
        rf"{counts[1]} lines in target \(lines\)\."
    )
    with pytest.raises(ValueError, match=message):
        make(*sides)


def test_empty_lines_at_the_end_of_one_side_are_told(make, english, german):
    with pytest.raises(
        ValueError, match=r"\(lines\)\. The last of them are em"
    ):
        make(english, [*german, "", " "])


def test_unequal_files_are_named(tmp_path, make):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one\n" * 1200)
    target.write_text("eins\n" * 30_000)
    message = (
        f"1,200 lines in source ({source}), 30,000 lines in target ({target})."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        make(source, str(target))


def test_line_end_characters_do_not_shift_the_sides(tmp_path, make):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_bytes("the\u2028museum\r\nthe\fmuseum\n".encode())
    target.write_bytes(b"das Museum\ndas\n")
    assert len(pairs_in(make(source, target))) == 2


@pytest.mark.parametrize("kind", ["files", "lists", "iterators", "dataset"])
def test_all_kinds_of_text_give_the_same(tmp_path, make, english, german, kind):
    expected = pairs_in(make(english, german, shuffle=False))
    if kind == "files":
        paths = []
        for name, lines in (("a.en", english), ("a.de", german)):
            for half, part in enumerate((lines[:123], lines[123:])):
                path = tmp_path / f"{half}{name}"
                path.write_text("".join(f"{line}\n" for line in part))
                paths.append(path)
        text = (paths[:2], [str(path) for path in paths[2:]])
    elif kind == "lists":
        text = (tuple(english), german)
    elif kind == "iterators":
        text = (iter(english), (line for line in german))
    else:
        text = (tf.data.Dataset.from_tensor_slices((english, german)),)
    assert pairs_in(make(*text, shuffle=False)) == expected


def test_separate_target_tokenizer(make, tokenizer, english, german):
    other = kt.Tokenizer.train(
        german, vocabulary_size=200, model_type="bpe", verbose=0
    )
    dataset = make(english, german, target_tokenizer=other, shuffle=False)
    expected = kept(expected_pairs(tokenizer, english, german, other))
    assert sorted(pairs_in(dataset)) == sorted(expected)
    labels = max(batch[2].max() for batch in batches(dataset))
    sources = max(batch[0].max() for batch in batches(dataset))
    assert labels < 200 <= sources


def test_many_lines_are_read_in_parts(make, monkeypatch, english, german):
    expected = pairs_in(make(english, german, shuffle=False))
    monkeypatch.setattr(dataset_module, "CHUNK_LINES", 7)
    assert pairs_in(make(english, german, shuffle=False)) == expected


@hypothesis.given(
    strategies.lists(
        strategies.tuples(
            strategies.integers(0, 30), strategies.integers(0, 30)
        ),
        min_size=1,
        max_size=30,
    ),
    strategies.integers(16, 100),
    strategies.booleans(),
)
@hypothesis.settings(max_examples=10)
def test_any_lengths_are_all_there(tokenizer, counts, tokens, shuffle):
    source = ["in " * count for count, _ in counts]
    target = ["um " * count for _, count in counts]
    expected = [
        pair
        for pair in kept(expected_pairs(tokenizer, source, target), 16)
        if min(map(len, pair)) > 1
    ]
    hypothesis.assume(expected)
    dataset = kt.translation_dataset(
        source,
        target,
        tokenizer,
        tokens_per_batch=tokens,
        max_length=16,
        shuffle=shuffle,
        verbose=0,
    )
    assert sorted(pairs_in(dataset)) == sorted(expected)
    assert len(dataset) == len(batches(dataset))


@pytest.mark.parametrize("max_length", [1, 5, 8, 9, 64, 100, 1024])
def test_buckets_rise_to_the_longest_length(max_length):
    buckets = length_buckets(max_length)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == max_length
    for shorter, longer in zip(buckets, buckets[1:], strict=False):
        # Steps of 4, then of a quarter: little of a batch is padding.
        assert longer - shorter <= max(4, shorter // 4)


def test_infinite_dataset_is_refused(make):
    endless = tf.data.Dataset.from_tensors(("one", "eins")).repeat()
    message = r"must end. Received: an infinite dataset.*take\(n\)"
    with pytest.raises(ValueError, match=message):
        make(endless)
    assert len(pairs_in(make(endless.take(3)))) == 3


@pytest.mark.parametrize(
    "elements",
    [
        "one",
        ("one", "eins", "un"),
        (1, 2),
        (["one"], ["eins"]),
        {"source": "one", "target": "eins"},
    ],
)
def test_dataset_of_other_elements_is_refused(make, elements):
    message = "must be a dataset of pairs of scalar strings. Received: elements"
    with pytest.raises(TypeError, match=message):
        make(tf.data.Dataset.from_tensors(elements))


def test_dataset_with_a_target_beside_is_refused(make):
    pairs = tf.data.Dataset.from_tensors(("one", "eins"))
    message = "`target` must be None.*Received: target of type list"
    with pytest.raises(TypeError, match=message):
        make(pairs, ["eins"])


def test_dataset_that_is_not_utf8_names_the_pair(make):
    pairs = tf.data.Dataset.from_tensor_slices(
        ([b"one", b"tw\xf6"], [b"eins", b"zwei"])
    )
    message = "must be UTF-8. Received: pair 2 of the dataset"
    with pytest.raises(ValueError, match=message):
        make(pairs)


def test_missing_target_is_refused(make):
    message = "`target` must be given.*Received: target=None"
    with pytest.raises(TypeError, match=message):
        make(["one"])


def test_missing_file_is_named(make, tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file.*missing.en"):
        make(tmp_path / "missing.en", ["eins"])


@pytest.mark.parametrize("wrong", [None, "tokenizer.model", b"model"])
def test_what_is_no_tokenizer_is_refused(make, wrong):
    message = "`tokenizer` must be a Tokenizer. Received: tokenizer of type"
    with pytest.raises(TypeError, match=message):
        make(["one"], ["eins"], tokenizer=wrong)


def test_tokenizer_in_the_place_of_the_target_is_named(tokenizer):
    pairs = tf.data.Dataset.from_tensors(("one", "eins"))
    message = "`target` must be text.*Received: a Tokenizer. Pass it as `token"
    with pytest.raises(TypeError, match=message):
        kt.translation_dataset(pairs, tokenizer)


def test_what_is_no_target_tokenizer_is_refused(make):
    message = "`target_tokenizer` must be a Tokenizer.*of type str"
    with pytest.raises(TypeError, match=message):
        make(["one"], ["eins"], target_tokenizer="tokenizer.model")


def test_pairs_must_fit_a_batch(make, tokenizer):
    length = len(tokenizer.encode("one two")) + 1
    pairs = ["one two", "one"], ["a", "a"]
    dataset = make(*pairs, tokens_per_batch=length)
    rows = [len(labels) for _, labels, _ in dataset]
    assert rows == [1, 1]
    message = (
        "`tokens_per_batch` must be at least the length.*"
        f"tokens_per_batch={length - 1}, lines with one of {length} tokens"
    )
    with pytest.raises(ValueError, match=message):
        make(*pairs, tokens_per_batch=length - 1)
    # Longer ones are dropped.
    make(*pairs, tokens_per_batch=length - 1, max_length=length - 1)


def test_seed_must_be_an_integer(make):
    with pytest.raises(TypeError, match="`seed` must be an integer.*'a'"):
        make(["one"], ["eins"], seed="a")


@pytest.mark.parametrize("name", ["tokens_per_batch", "max_length"])
@pytest.mark.parametrize(
    ("size", "error"), [(0, ValueError), (-1, ValueError), (8.0, TypeError)]
)
def test_sizes_out_of_range(make, name, size, error):
    with pytest.raises(error, match=f"`{name}` must be .*{name}={size}"):
        make(["one"], ["eins"], **{name: size})


def test_each_epoch_draws_the_pieces_of_each_sentence(
    make, tokenizer, english, german
):
    best = expected_pairs(tokenizer, english, german)

    def epochs(seed):
        dataset = make(english, german, segmentations=4, seed=seed)
        for inputs, _, _ in dataset:
            rows, length = inputs["source_ids"].shape
            assert rows == TOKENS_PER_BATCH // length
        return [pairs_in(dataset) for _ in range(2)]

    def text(pairs):
        return sorted([*map(tokenizer.decode, pair)] for pair in pairs)

    one, other = epochs(seed=1)
    assert [one, other] == epochs(seed=1)
    assert [one, other] != epochs(seed=2)
    assert text(one) == text(other) == text(best)
    for epoch in (one, other):
        share = len({*epoch} & {*best}) / len({*best})
        assert 0.1 < share < 0.6  # of four, one is the best
    assert len({*one} & {*other}) < len({*best}) / 2


@pytest.mark.parametrize("limit", ["max_length", "tokens_per_batch"])
def test_pieces_that_would_be_too_many_are_not_drawn(make, tokenizer, limit):
    text = "the museum in Rome is old"
    length = len(tokenizer.encode(text)) + 1
    dataset = make(
        [text] * 50,
        [text] * 50,
        **{limit: length},
        segmentations=3,
        segmentation_alpha=0.01,
        seed=1,
    )
    pairs = pairs_in(dataset)
    assert len(pairs) == 50
    for ids in (ids for pair in pairs for ids in pair):
        assert len(ids) <= length
        assert ids[-1] == END  # not cut off
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"segmentations": 0}, ValueError, "`segmentations` must be at least"),
        ({"segmentations": 2.0}, TypeError, "`segmentations` must be an int"),
        (
            {"segmentations": 2, "segmentation_alpha": 0.0},
            ValueError,
            r"`segmentation_alpha` must be in \(0, 1]",
        ),
        (
            {"segmentations": 2, "shuffle": False},
            ValueError,
            "`segmentations` must be 1 without `shuffle`",
        ),
    ],
)
def test_segmentations_that_cannot_be(make, options, kind, message):
    with pytest.raises(kind, match=message):
        make(["one"], ["eins"], **options)


@pytest.mark.parametrize(
    ("source", "target", "report"),
    [
        ([], [], "0 pairs, 0 kept"),
        (["", " "], ["eins", "zwei"], "2 pairs, 0 kept, 2 dropped as empty"),
        (
            ["the " * 99],
            ["das"],
            "1 pairs, 0 kept, 1 dropped as longer than 64",
        ),
    ],
)
def test_no_pair_left_says_why(make, source, target, report):
    message = f"No pair of sentences is left. Received: .*: {report}"
    with pytest.raises(ValueError, match=message):
        make(source, target)


def test_text_without_an_encoding_is_named_by_its_line(make, monkeypatch):
    monkeypatch.setattr(dataset_module, "CHUNK_LINES", 2)
    source = ["a cat", "a dog", "a hen", "a \udc80"]
    message = r"Received: line 4 with '\udc80' at 2"
    with pytest.raises(ValueError, match=re.escape(message)):
        make(source, ["eine Katze"] * 4)


def test_transformer_fits_for_an_epoch(make, tokenizer, english, german):
    model = kt.Transformer(
        tokenizer.vocabulary_size,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.0,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=kt.LabelSmoothedCrossentropy(0.1),
        weighted_metrics=[kt.TokenAccuracy()],
        jit_compile=False,
    )
    dataset = make(english, german, max_length=32, seed=1)
    before = model.evaluate(dataset, verbose=0, return_dict=True)
    history = model.fit(dataset, validation_data=dataset, epochs=1, verbose=0)
    assert history.history["val_loss"][0] < before["loss"]
