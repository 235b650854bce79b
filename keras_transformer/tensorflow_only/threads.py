"""How the cores of a processor share what TensorFlow computes."""

import contextlib
import os

import keras

from keras_transformer.system.cores import num_cores
from keras_transformer.tensorflow_only.devices import are_cpus
from keras_transformer.tensorflow_only.devices import replica_context

# Each takes memory of its own.
MOST_BATCHES_AT_ONCE = 8
# Of a batch; each is a graph of its own, which takes seconds to make.
MOST_PARTS_AT_ONCE = 4


def batches_at_once() -> int:
    """How many batches TensorFlow is to decode at a time.

    On processors two, as operations one after another leave cores idle; or one
    for each core, at most 8, where operations have one thread.
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    if not are_cpus(tf.config.list_logical_devices()):
        return 1
    if _threads("intra") != 1:
        return 2
    return min(num_cores(), MOST_BATCHES_AT_ONCE)


def parts_at_once() -> int:
    """How many parts of a batch a step of training is to compute at a time.

    One for each core, at most 4, in a graph for processors where operations
    have one thread, and may be computed at the same time; otherwise one.
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    if tf.executing_eagerly() or replica_context() is not None:
        return 1
    if not are_cpus(tf.config.list_logical_devices()):
        return 1
    if _threads("intra") != 1:
        return 1
    cores = min(num_cores(), MOST_PARTS_AT_ONCE)
    return min(cores, _threads("inter") or cores)


def give_cores_to_batches(num_texts: int):
    """Lets each core decode a batch of its own, for programs that decode much.

    The operations of a step are small: to share one among cores, and to wait
    for all of them, takes longer than many of them do. Without effect where
    there are more cores than texts, or than batches at a time, and where
    TensorFlow has computed already, has other devices, or was told how many
    threads to have.

    Args:
        num_texts: How many texts it will decode.
    """
    _give_cores(min(MOST_BATCHES_AT_ONCE, num_texts))


def give_cores_to_parts():
    """Lets each core compute a part of a batch, for programs that train.

    For models whose operations are small. Without effect where
    `give_cores_to_batches` has none.
    """
    _give_cores(MOST_PARTS_AT_ONCE)


def _give_cores(most):
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    is_left_alone = _threads("intra") or num_cores() > most
    if not is_left_alone and are_cpus(tf.config.list_physical_devices()):
        with contextlib.suppress(RuntimeError):  # it has computed
            tf.config.threading.set_intra_op_parallelism_threads(1)


def _threads(kind) -> int:
    """How many threads there are, 0 for as many as TensorFlow thinks.

    Args:
        kind: `"intra"` for those that share an operation: with one each
            operation is computed undivided. `"inter"` for those that compute
            operations at the same time.
    """
    import tensorflow as tf

    threads = getattr(tf.config.threading, f"get_{kind}_op_parallelism_threads")
    told = os.environ.get(f"TF_NUM_{kind.upper()}OP_THREADS", "")
    return threads() or (int(told) if told.isdecimal() else 0)
