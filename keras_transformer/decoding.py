"""Decoding sources: a model, a search, and what they keep for each sentence.

A single loop over a batch goes on with finished sentences until the last one is
done, and attends to a cache for the longest target from the first step. In
segments, the loop stops from time to time: sentences that are done leave the
batch, and the cache grows when it is full. Where a loop copies at each step
what it changes, as LiteRT does, the cache is small and does not grow: its
content moves to a past, which steps only read.
"""

from typing import Any
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.decoder import past_length
from keras_transformer.lengths import default_max_length
from keras_transformer.masking import padding_mask
from keras_transformer.search import Hypotheses
from keras_transformer.search import Problem
from keras_transformer.search import seeds_of
from keras_transformer.special_tokens import PAD_TOKEN_ID
from keras_transformer.tensorflow_only.graphs import is_litert_graph
from keras_transformer.tensorflow_only.indexing import size
from keras_transformer.tensors.slices import at_least
from keras_transformer.tensors.slices import at_most
from keras_transformer.tensors.slices import largest
from keras_transformer.tensors.slices import take
from keras_transformer.tensors.slices import write_slice

# Target positions that a cache has room for at first; with a past, always. A
# segment costs LiteRT about as much as a step, and each position some copying.
FIRST_ROOM = 16

# Least `hidden_dim` for which LiteRT keeps a past.
LEAST_DIM_WITH_PAST = 256

# A compiled batch does not shrink below this many sentences: fewer would cost
# about as much for each step.
FEWEST_COMPILED = 8


class Decoding(NamedTuple):
    """A decoding under way; every tensor has a row for each sentence.

    Attributes:
        inputs: Dictionary of `source_ids` `(B, S)`, `max_lengths` `(B,)`, and
            where asked for `min_lengths` `(B,)`, `target_prefix_ids` `(B, T)`
            and the search's `seed` `(B,)`.
        encoded_cache: Keys and values of the source, a pair for each layer.
        cache: Keys and values of the targets so far, likewise.
        state: The search's.
        past: Keys and values of the positions before those of `cache`; `()`
            where `cache` grows.
    """

    inputs: dict
    encoded_cache: Any
    cache: Any
    state: Any
    past: Any = ()


class _Batch(NamedTuple):
    """A batch between two segments.

    Attributes:
        position: The next position to decode, scalar int32 tensor.
        decoding: The sentences that go on.
        rows: Which of the batch they are, `(B,)`.
        done_rows: Which have left it.
        found: Their `Hypotheses`.
    """

    position: Any
    decoding: Decoding
    rows: Any
    done_rows: Any
    found: Hypotheses

    def goes_on(self):
        """Whether a sentence is left."""
        return ops.greater(size(self.rows, 0), 0)


class DecodingLoop:
    """Decodes sources with a model and a search.

    Args:
        model: A `Transformer`.
        search: A `Search`.
        capacity: Most tokens of any target; by default the largest of
            `max_lengths`, or the columns of the sources + 50, within the
            model's `max_length`. Compilers must know it.
        needs_scores: Whether scores are wanted.
        screen: Function of the last vectors of a step, `(B, W, D)`, to
            `ScreenedLogits`; by default all logits are exact.
    """

    def __init__(
        self, model, search, capacity=None, needs_scores=True, screen=None
    ):
        self.model = model
        self.search = search
        self.capacity = capacity
        self.needs_scores = needs_scores
        self.screen = screen

    def whole(self, inputs) -> Hypotheses:
        """Decodes in one loop; for compilers, which want fixed shapes.

        Args:
            inputs: As for `start`.

        Returns:
            `Hypotheses`, target ids `(B, K, T)`, `T` the capacity.
        """
        decoding = self.start(inputs, room=None)
        _, decoding = self.advance(0, decoding)
        return self.search.hypotheses(decoding.state)

    def start(self, inputs, room=FIRST_ROOM) -> Decoding:
        """Encodes the sources and starts the search.

        Args:
            inputs: As for `Decoding`; by default `max_lengths` are those of
                the sources + 50.
            room: Target positions that the cache has room for; the capacity
                with `None`.
        """
        source_ids = ops.cast(inputs["source_ids"], "int32")
        max_lengths, capacity = self._limits(
            source_ids, inputs.get("max_lengths")
        )
        inputs = {
            **inputs,
            "source_ids": source_ids,
            "max_lengths": max_lengths,
        }
        if "target_prefix_ids" in inputs:
            prefix_ids = inputs["target_prefix_ids"][:, :capacity]
            rest = capacity - size(prefix_ids, 1)
            inputs["target_prefix_ids"] = ops.pad(
                prefix_ids, ((0, 0), (0, rest))
            )
        room = capacity if room is None else at_most(room, capacity)
        encoded = self.model.encode(source_ids)
        return Decoding(
            inputs,
            self.model.decoder.encoded_cache(encoded),
            self.model.decoder.start_cache(
                size(source_ids, 0), room, self.search.num_slots
            ),
            self.search.start(self._problem(inputs, capacity)),
        )

    def _limits(self, source_ids, max_lengths):
        """The most tokens of each target, `(B,)`, and the capacity for all."""
        is_token = ops.cast(padding_mask(source_ids), "int32")
        source_lengths = ops.sum(is_token, axis=1)  # (B,)
        capacity, longest = self.capacity, self.model.max_length
        if capacity is None:
            capacity = default_max_length(size(source_ids, 1))
            if max_lengths is not None:
                capacity = ops.max(max_lengths, initial=1)  # of no rows, 1
            if longest is not None:
                least = min if isinstance(capacity, int) else at_most
                capacity = least(capacity, longest)
        if max_lengths is None:
            max_lengths = default_max_length(source_lengths)
        max_lengths = at_most(max_lengths, capacity)
        if longest is not None:
            max_lengths = at_most(max_lengths, longest)
        # An empty source has an empty target.
        return ops.where(source_lengths > 0, max_lengths, 0), capacity

    def advance(self, position, decoding, enough_done=None):
        """Decodes until the cache is full or enough sentences are done.

        Args:
            position: The first position to decode, scalar int32 tensor.
            decoding: From `start`, or from here.
            enough_done: How many sentences are enough; by default all.

        Returns:
            The next position, and the decoding.
        """
        encoded_mask = padding_mask(decoding.inputs["source_ids"])
        # Screening cannot force the tokens of a prefix.
        is_forced = "target_prefix_ids" in decoding.inputs

        def step(token_ids, position, cache, ancestry):
            return self.model.decode_step(
                token_ids,
                position,
                cache,
                decoding.encoded_cache,
                encoded_mask,
                ancestry,
                decoding.past,
                project=None if is_forced else self.screen,
            )

        position, state, cache = self.search.advance(
            step,
            decoding.cache,
            decoding.state,
            self._problem(decoding.inputs, self._capacity(decoding)),
            position,
            end_position=(
                self._first_position(decoding) + self._room(decoding.cache)
            ),
            enough_done=enough_done,
        )
        return position, decoding._replace(cache=cache, state=state)

    def in_segments(self, inputs, compile_function=None) -> Hypotheses:
        """Decodes segment by segment; for backends that let shapes vary.

        Inside of a `tf.function` the sizes of `inputs` must be unknown.

        Args:
            inputs: As for `start`.
            compile_function: Compiles the functions that take the time, for
                each shape. To keep shapes few, a batch then shrinks only by
                halves, and not below `FEWEST_COMPILED`.

        Returns:
            As `whole`.
        """
        start, advance = self.start, self.advance
        is_compiled = compile_function is not None
        if is_compiled:
            start, advance = compile_function(start), compile_function(advance)
        batch_size = size(inputs["source_ids"], 0)
        rows = ops.arange(batch_size, dtype="int32")
        none = rows[batch_size:]
        # 0, computed: TensorFlow would make a constant a part of the cache's
        # shape, which then could not grow in the loop.
        position = ops.sum(none)
        decoding = self._fitted(start(inputs), position)
        if self._has_past():
            past = self.model.decoder.start_cache(
                batch_size, position + 1, self.search.num_slots
            )
            decoding = decoding._replace(past=past)
        found = _taken(self.search.hypotheses(decoding.state), none)
        [done] = ops.while_loop(
            lambda batch: batch.goes_on(),
            lambda batch: [self._next_segment(batch, advance, is_compiled)],
            [_Batch(position, decoding, rows, none, found)],
        )
        order = ops.scatter(
            ops.expand_dims(done.done_rows, 1), rows, (batch_size,)
        )
        return _taken(done.found, order)

    def _next_segment(self, before, advance, is_compiled):
        """Decodes a segment, and lets the sentences leave that are done."""
        count = size(before.rows, 0)
        enough_done = count - count // 2
        if is_compiled:
            enough_done = ops.where(
                count // 2 >= FEWEST_COMPILED, enough_done, count
            )
        position, decoding = advance(
            before.position,
            before.decoding,
            ops.convert_to_tensor(enough_done, dtype="int32"),
        )
        going = ops.logical_not(self.search.done(decoding.state))
        has_room = ops.less(position, self._capacity(decoding))
        going = ops.cast(ops.logical_and(going, has_room), "int32")
        _, order = largest(going, count)  # those that go on first
        kept = _count_for(ops.sum(going), count, is_compiled)
        leaving = order[kept:]
        found = _taken(self.search.hypotheses(decoding.state), leaving)
        return _Batch(
            position,
            self._continued(decoding, order, kept, position),
            rows=take(before.rows, order[:kept]),
            done_rows=_joined(before.done_rows, take(before.rows, leaving)),
            found=keras.tree.map_structure(_joined, before.found, found),
        )

    def _continued(self, decoding, order, count, position):
        """Keeps the first sentences of an order, with room in the cache."""
        if not decoding.past:
            return self._fitted(_taken(decoding, order[:count]), position)
        num_written = position - self._first_position(decoding)
        num_written = num_written * self.search.num_slots

        # LiteRT has one block of memory for all results of `take`, which it
        # allocates again, page by page, when they grow. So all rows are taken
        # and then cut: what is cut to a computed size needs the block only
        # until then.
        def cut(x, length=None):
            """Keeps `count` rows and, if given, `length` places of axis 2."""
            sizes = [size(x, axis) for axis in range(len(x.shape))]
            sizes[0] = count
            if length is not None:
                sizes[2] = length
            return ops.slice(x, [0] * len(sizes), sizes)

        def joined(past, new):
            """Moves what the cache has to the end of the past."""
            start, more = size(past, 2), size(new, 2)
            past = ops.pad(past, ((0, 0), (0, 0), (0, more), (0, 0)))
            past = write_slice(past, start, new)
            return cut(take(past, order), start + num_written)

        map_structure = keras.tree.map_structure
        past = map_structure(joined, decoding.past, decoding.cache)
        cache = map_structure(cut, decoding.cache)  # to be written over
        others = decoding._replace(past=(), cache=())
        others = map_structure(lambda x: cut(take(x, order)), others)
        return others._replace(past=past, cache=cache)

    def _fitted(self, decoding, position):
        """Makes room in the cache if the targets have filled it."""
        room = self._room(decoding.cache)
        capacity = self._capacity(decoding)
        wanted = ops.where(
            ops.equal(position, room), at_most(2 * room, capacity), room
        )
        more = (wanted - room) * self.search.num_slots
        cache = keras.tree.map_structure(
            lambda x: ops.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))),
            decoding.cache,
        )
        return decoding._replace(cache=cache)

    def _capacity(self, decoding):
        return size(decoding.state.target_ids, 2)

    def _has_past(self):
        """Whether keys and values are kept in two parts.

        For small models, attending to both takes longer than copying one.
        """
        is_large = self.model.hidden_dim >= LEAST_DIM_WITH_PAST
        return is_litert_graph() and is_large and self.model.decoder.takes_past

    def _first_position(self, decoding):
        """The first position that the cache holds."""
        return past_length(decoding.past, self.search.num_slots)

    def _room(self, cache):
        keys, _ = cache[0]  # (B, N, L W, H)
        return size(keys, 2) // self.search.num_slots

    def _problem(self, inputs, capacity):
        is_random = self.search.seed is not None
        return Problem(
            start_ids=ops.full_like(
                inputs["max_lengths"], self.model.start_token_id
            ),
            max_lengths=inputs["max_lengths"],
            capacity=capacity,
            end_token_id=self.model.end_token_id,
            min_lengths=inputs.get("min_lengths"),
            prefix_ids=inputs.get("target_prefix_ids"),
            forbidden_token_ids=(PAD_TOKEN_ID, self.model.start_token_id),
            search_seeds=inputs.get("seed"),
            sentence_seeds=(
                seeds_of(inputs["source_ids"]) if is_random else None
            ),
            needs_scores=self.needs_scores,
        )


def _count_for(going, count, is_compiled):
    """The number of sentences to which to shrink a batch of `count`."""
    if not is_compiled:
        return going
    halves = count // 2 ** ops.arange(16, dtype="int32")
    enough = at_most(at_least(going, FEWEST_COMPILED), count)
    fitting = ops.where(halves >= enough, halves, count)
    return ops.where(going > 0, ops.min(fitting), 0)


def _taken(tensors, rows):
    return keras.tree.map_structure(lambda x: take(x, rows), tensors)


def _joined(x, y):
    return ops.concatenate([x, y], axis=0)
