"""How the optimizers here differ from those of Keras."""

import numbers

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_not_negative_number
from keras_transformer.checks import check_positive
from keras_transformer.checks import check_positive_number
from keras_transformer.checks import check_share
from keras_transformer.tensorflow_only.adam import summed_rows
from keras_transformer.tensorflow_only.adam import update_by_adam
from keras_transformer.tensorflow_only.devices import replica_context
from keras_transformer.tensorflow_only.devices import sum_over_devices
from keras_transformer.tensorflow_only.devices import update_on_devices
from keras_transformer.tensorflow_only.graphs import after

# The ranges of options of Keras's optimizers, which checks few of them.
WHOLE = ("gradient_accumulation_steps", "ema_overwrite_frequency", "ns_steps")
POSITIVE = ("clipnorm", "global_clipnorm", "clipvalue", "adam_lr_ratio")
SHARES = ("beta_1", "beta_2", "adam_beta_1", "adam_beta_2", "momentum")
NOT_NEGATIVE = ("epsilon", "weight_decay", "adam_weight_decay")


class Updates:
    """Applies Adam in one pass over the weights, and on several devices.

    A class inherits from this one before that of Keras, which passes over a
    weight and its two moments about ten times. TensorFlow has one operation for
    all of it, which is used for float32 weights; everything else is left to
    Keras.

    It differs from Keras in four points:

    - With `gradient_accumulation_steps` a schedule counts updates, not
      batches.
    - Where an embedding's gradient is a list of rows, one for each token,
      those of the same token are added up before they are clipped or squared,
      as the definitions demand. Keras squares each and adds up the squares.
    - On several devices of a `tf.distribute` strategy it clips and accumulates
      the sum of their gradients, with the same result as on one device. Keras
      clips those of each device, and cannot accumulate them.
    - The end of a dataset of unknown length is not an update. TensorFlow finds
      it in a step of which it computes all that needs no data: Keras counts an
      update there, and forgets what it has accumulated.

    A subclass provides three methods: `_moments` and `_decay_of` of a weight,
    and `_constants` of an update by Adam.
    """

    def __init__(self, learning_rate, **options):
        given = {
            name: value for name, value in options.items() if value is not None
        }
        if isinstance(learning_rate, numbers.Number):
            check_not_negative_number(learning_rate=learning_rate)
        check_positive(**_chosen(given, WHOLE))
        check_positive_number(**_chosen(given, POSITIVE))
        check_share(**_chosen(given, SHARES))
        check_not_negative_number(**_chosen(given, NOT_NEGATIVE))
        super().__init__(learning_rate, **options)

    def build(self, variables):
        for variable in variables:
            if variable.dtype == "float16" and not np.float16(self.epsilon):
                raise ValueError(
                    "`epsilon` must not be 0 in the dtype of a weight. "
                    f"Received: epsilon={self.epsilon}, {variable.path} of "
                    "float16. Train with dtype='mixed_float16', whose weights "
                    "are float32, or with epsilon=1e-4."
                )
        super().build(variables)

    def _get_current_learning_rate(self):
        rate = self._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return rate(self.iterations)  # of updates; Keras: of batches
        return super()._get_current_learning_rate()

    def apply(self, grads, trainable_variables=None):
        # One gradient, not all: memory of the others is free once applied.
        of_data = [gradient for gradient in grads if gradient is not None]
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if of_data and not self.built:
                # XLA needs states that are created before anything waits.
                with keras.name_scope(self.name, caller=self):
                    self.build(trainable_variables)
        # The step at the end of a dataset has no data, so that nothing may be
        # updated before there is a gradient.
        with after(of_data[-1:]):
            super().apply(grads, trainable_variables)

    def _backend_apply_gradients(self, grads, trainable_variables):
        devices = replica_context()
        if devices is not None:
            self._check_for_devices()
            # Before they are clipped.
            grads = sum_over_devices(devices, grads)
        if devices is not None and self.gradient_accumulation_steps:
            self._accumulate_on_devices(devices, grads, trainable_variables)
        else:
            super()._backend_apply_gradients(grads, trainable_variables)

    def _check_for_devices(self):
        """Raises if Keras would need a condition that devices cannot share."""
        for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
            value = getattr(self, name)
            if self.use_ema and value:
                raise ValueError(
                    f"`{name}` must not be combined with `use_ema` on several "
                    f"devices. Received: {name}={value}, use_ema=True. Use "
                    "`WeightAveraging` instead."
                )

    def _accumulate_on_devices(self, devices, gradients, variables):
        """Updates after every `gradient_accumulation_steps` batches.

        Keras decides for all weights at once whether to update. Devices of
        TensorFlow cannot communicate inside a condition, so that it is decided
        for each weight here.
        """
        steps = self.gradient_accumulation_steps
        is_last = (self._iterations.value + 1) % steps == 0
        accumulators = [
            self._accumulated_gradients[self._get_variable_index(variable)]
            for variable in variables
        ]
        sums = [
            gradient + accumulator
            for gradient, accumulator in zip(
                gradients, accumulators, strict=True
            )
        ]
        update_on_devices(
            devices,
            lambda accumulator, new: accumulator.assign(new),
            accumulators,
            [ops.where(is_last, ops.zeros_like(x), x) for x in sums],
        )

        def update(variable, gradient, is_last, learning_rate, constants):
            def update_now():
                decay = self._decay_of(variable)
                if decay and self._use_weight_decay(variable):
                    share = ops.cast(learning_rate * decay, variable.dtype)
                    variable.assign_sub(variable * share)
                self._update(variable, gradient, learning_rate, constants)

            ops.cond(is_last, update_now, lambda: None)

        learning_rate = self.learning_rate
        of_all = is_last, learning_rate, self._constants(learning_rate)
        update_on_devices(
            devices,
            update,
            variables,
            self._clip_gradients([x / steps for x in sums]),
            *([value] * len(variables) for value in of_all),
        )

    def _clip_gradients(self, grads):
        if self.clipnorm or self.global_clipnorm or self.clipvalue:
            grads = [summed_rows(gradient) for gradient in grads]
        return super()._clip_gradients(grads)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if keras.backend.backend() != "tensorflow":
            super()._backend_update_step(
                grads, trainable_variables, learning_rate
            )
            return
        of_all = learning_rate, self._constants(learning_rate)
        update_on_devices(
            replica_context(),
            self._update,
            trainable_variables,
            grads,
            *([value] * len(grads) for value in of_all),
        )

    def _update(self, variable, gradient, learning_rate, constants):
        """One update of one weight."""
        gradient = summed_rows(gradient)
        moments = self._moments(variable)
        done = moments and update_by_adam(
            variable, *moments, gradient, constants
        )
        if not done:
            self.update_step(gradient, variable, learning_rate)


def _chosen(options, names):
    return {name: options[name] for name in names if name in options}
