"""Averages of the weights along a training, section 6.1."""

import collections
import contextlib
import math

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.checks import check_share
from keras_transformer.training.loss_scale import unwrapped


class WeightAveraging(keras.callbacks.Callback):
    """Validates and saves averaged weights; trains on from the weights.

    Section 6.1 of [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
    translates with the mean of the last 5 checkpoints (base) or 20 (big):
    `last=5`, one checkpoint an epoch unless `every` says otherwise. `decay`
    instead weighs each sample less than the one after it, as
    [Polyak and Juditsky](https://doi.org/10.1137/0330046) averaging is
    usually done:

    `mean = sum_i decay^(n - i) weights_i / sum_i decay^(n - i)`

    Keras offers such an average with `use_ema` of its optimizers and
    `keras.callbacks.SwapEMAWeights`. There the first sample has the weight of
    all samples before it as well, and fades slowly; here it counts once.

    Only trainable weights are averaged. The averages replace them while the
    model is validated, in `on_epoch_end` of the callbacks that come after this
    one (`ModelCheckpoint` saves the averages), and when `fit` has ended;
    before the first sample the model keeps its own. Put this callback first,
    in a list: on JAX, Keras would run a single callback beside training.

    If an exception ends `fit` during validation, the averages stay in the
    model; `restore()` puts the weights back. Another `fit` with the same
    callback does so by itself, and goes on as if `fit` had not ended; in
    another process, a `Checkpoint` does. `keras.callbacks.BackupAndRestore`
    loses the samples; listed after this callback it restores the averages as
    if they were the weights.

    Args:
        last: Number of samples to average. Each is a copy of the weights, in
            the memory of the host.
        decay: Weight of a sample relative to the next one, in `[0, 1)`.
        every: Optimizer updates between two samples. By default `last` takes
            one at the end of each epoch, `decay` one after each update. An
            update that a loss scale skips counts too. With
            `compile(steps_per_execution=...)` there is at most one sample per
            execution, at its end, and the last execution of a dataset of
            unknown length counts whole. Where a loop of your own accumulates
            gradients in an optimizer that the model was not compiled with,
            every batch counts as an update.

    Raises:
        TypeError: If `last` or `every` is not an integer, or `decay` no number.
        ValueError: If not exactly one of `last` and `decay` is given, or one
            is out of range.

    Example:
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x = keras.ops.ones((8, 1))
    >>> averaging = WeightAveraging(last=5)
    >>> history = model.fit(x, x, epochs=6, verbose=0, callbacks=[averaging])
    """

    def __init__(
        self,
        last: int | None = None,
        decay: float | None = None,
        every: int | None = None,
    ):
        super().__init__()
        if (last is None) == (decay is None):
            raise ValueError(
                "Exactly one of `last` and `decay` must be given. Received: "
                f"last={last}, decay={decay}."
            )
        if last is not None:
            check_positive(last=last)
        else:
            check_share(decay=decay)
            every = 1 if every is None else every
        if every is not None:
            check_positive(every=every)
        self.last = last
        self.decay = decay
        self.every = every
        self._forget()

    def set_model(self, model):
        """Starts over with another model."""
        if self._model is not None and model is not self._model:
            self._forget()
        super().set_model(model)

    def set_params(self, params):
        """Takes those of `fit`, or of an evaluation that has its own.

        The validation of `fit` has those of `fit`.
        """
        self._params_before = self.params
        self._is_alone = True
        super().set_params(params)

    def apply(self):
        """Puts the averages in the model; `restore` undoes it."""
        if self._weights is None and self._num_samples:
            averages = self.averages()
            self._weights = self._copies()
            self._assign(averages)

    def restore(self):
        """Puts the weights that are trained back in the model."""
        if self._weights is not None:
            self._assign(self._weights)
            self._weights = None

    @contextlib.contextmanager
    def restored(self):
        """Puts the weights that are trained in the model, inside the block.

        Afterwards the model has again what it had before: the averages, or
        other weights that were assigned since.
        """
        if self._weights is None:
            yield
            return
        found = self._copies()
        self.restore()
        try:
            yield
        finally:
            self._weights = self._copies()
            self._assign(found)

    def averages(self) -> list[np.ndarray]:
        """The averages of `model.trainable_variables`, `[]` without any."""
        if not self._num_samples:
            return []
        if self.decay is not None:
            return [ops.convert_to_numpy(mean) for mean in self._mean]
        return [*map(_mean, zip(*self._samples, strict=True))]

    def save_own_variables(self, store):
        """Writes what a later `fit` needs, arrays by name, into `store`.

        The weights themselves are the model's to save, when `restored()`.
        """
        store["last"] = np.asarray(self.last or 0)
        store["decay"] = np.asarray(self.decay or 0.0)
        store["num_samples"] = np.asarray(self._num_samples)
        store["num_batches"] = np.asarray(self._num_batches)
        samples = self._samples
        if self.decay is not None:
            samples = [self.averages()] if self._num_samples else []
        for age, arrays in enumerate(samples):
            for index, array in enumerate(arrays):
                store[f"{age}/{index}"] = array

    def load_own_variables(self, store):
        """Reads what `save_own_variables` wrote.

        Raises:
            ValueError: If it was written by an averaging of another kind.
        """
        samples = {}
        for name, array in store.items():
            if "/" in name:
                age, index = map(int, name.split("/"))
                samples.setdefault(age, {})[index] = np.asarray(array)
        num_samples = int(store["num_samples"])
        expected = 1 if self.decay is not None else self.last
        last, decay = int(store["last"]), float(store["decay"])
        is_same = last == (self.last or 0) and decay == (self.decay or 0.0)
        if not is_same or len(samples) != min(num_samples, expected):
            raise ValueError(
                "The averages must be those of the same `last` or `decay`, "
                f"here last={self.last}, decay={self.decay}. Received: "
                f"{len(samples)} arrays per weight after {num_samples} "
                f"samples, last={last or None}, decay={decay or None}."
            )
        self._forget()
        self._num_samples = num_samples
        self._num_batches = int(store["num_batches"])
        for age in sorted(samples):
            arrays = [samples[age][index] for index in sorted(samples[age])]
            if self.decay is not None:
                self._mean = [ops.convert_to_tensor(array) for array in arrays]
            else:
                self._samples.append(arrays)

    def on_train_begin(self, logs=None):
        if self._weights is not None and not self._is_applied():
            self._forget()  # other weights were assigned since
        self.restore()
        variables = self.model.trainable_variables
        known = variables if self._variables is None else self._variables
        if list(map(id, known)) != list(map(id, variables)):
            self._forget()  # others are trained now
        self._variables = variables
        self._training = True
        self._is_alone = False

    def on_epoch_begin(self, epoch, logs=None):
        self.restore()
        self._sampled = False
        self._is_alone = False

    def on_train_batch_begin(self, batch, logs=None):
        self._first_batch = batch

    def on_train_batch_end(self, batch, logs=None):
        # From the first of an execution to its last, which Keras counts as if
        # the epoch went on.
        steps = (self.params or {}).get("steps")
        end = min(batch + 1, steps or math.inf)
        before = self._num_batches
        self._num_batches += end - self._first_batch
        if self.every:
            between = self.every * self._batches_per_update()
            if before // between < self._num_batches // between:
                self._sample()

    def on_epoch_end(self, epoch, logs=None):
        self._sample_epoch()
        self.apply()

    def on_train_end(self, logs=None):
        self._training = False
        self.apply()

    def on_test_begin(self, logs=None):
        if self._training and not self._is_alone:
            self._sample_epoch()  # validation comes before the epoch's end
        self._undo = self._weights is None
        self.apply()

    def on_test_end(self, logs=None):
        if self._undo:
            self.restore()
        if self._is_alone:
            self.params = self._params_before
            self._is_alone = False

    on_predict_begin = on_test_begin
    on_predict_end = on_test_end

    def _forget(self):
        self._num_samples = 0
        self._num_batches = 0
        self._first_batch = 0  # of what is executed
        self._samples = collections.deque(maxlen=self.last)
        self._mean = None
        self._variables = None  # whose averages they are
        self._weights = None  # those of the model, while averages are in it
        self._training = False
        self._sampled = False  # in this epoch
        self._is_alone = False  # evaluates, not as the validation of `fit`
        self._params_before = None
        self._undo = False  # what `on_test_begin` did, when the test ends

    def _batches_per_update(self):
        # A loop of one's own may have an optimizer that the model never sees.
        optimizer = unwrapped(getattr(self._model, "optimizer", None))
        return getattr(optimizer, "gradient_accumulation_steps", None) or 1

    def _is_applied(self):
        """Whether what `apply` put in the model is still there."""
        return all(
            np.array_equal(
                ops.convert_to_numpy(variable),
                ops.convert_to_numpy(ops.cast(average, variable.dtype)),
            )
            for variable, average in zip(
                self._averaged(), self.averages(), strict=True
            )
        )

    def _sample_epoch(self):
        if not self.every and not self._sampled:
            self._sample()
            self._sampled = True

    def _sample(self):
        self._num_samples += 1
        if self.last is not None:
            self._samples.append(self._copies())
            return
        # The share that makes the mean of `n` samples of that of `n - 1`.
        share = (1 - self.decay) / (1 - self.decay**self._num_samples)
        weights = [
            ops.cast(
                ops.stop_gradient(variable),  # torch would keep all samples
                keras.backend.result_type(variable.dtype, "float32"),
            )
            for variable in self._averaged()
        ]
        if self._mean is None:
            self._mean = [ops.zeros_like(weight) for weight in weights]
        self._mean = [
            mean + share * (weight - mean)
            for mean, weight in zip(self._mean, weights, strict=True)
        ]

    def _copies(self):
        # Keras copies: views would change with the next update.
        return [ops.convert_to_numpy(x) for x in self._averaged()]

    def _assign(self, values):
        for variable, value in zip(self._averaged(), values, strict=True):
            variable.assign(value)

    def _averaged(self):
        # On JAX, `model` brings its weights up to date when it is asked for.
        variables = self.model.trainable_variables
        # None where the averages were read from a checkpoint.
        return variables if self._variables is None else self._variables


def _mean(samples):
    """The mean of arrays, without a copy of them all as NumPy's would make."""
    total = np.zeros(samples[0].shape, "float64")
    for sample in samples:
        total += sample
    return (total / len(samples)).astype(np.result_type(samples[0], "float32"))
