"""What Keras has no name for, where it runs on TensorFlow.

Here alone the core imports tensorflow, and only where Keras runs on it.
"""

import contextlib
import contextvars
import functools
import os

import keras

from keras_transformer.batches import num_cores

# Each takes memory of its own.
MOST_BATCHES_AT_ONCE = 8
# Of a batch; each is a graph of its own, which takes seconds to make.
MOST_PARTS_AT_ONCE = 4

_runs_on = contextvars.ContextVar("runs_on", default=None)


def is_plain_graph() -> bool:
    """Whether a graph of TensorFlow is traced that XLA does not compile."""
    return _runs_on.get() == "tensorflow"


def is_litert_graph() -> bool:
    """Whether a graph is traced that LiteRT will run."""
    return _runs_on.get() == "litert"


@contextlib.contextmanager
def graph_for(runtime):
    """Says what will run a graph that is traced inside.

    Args:
        runtime: `"tensorflow"` operation by operation, `"litert"`, or `None`
            for another, such as XLA.
    """
    token = _runs_on.set(runtime)
    try:
        yield
    finally:
        _runs_on.reset(token)


def jit(function):
    """Compiles with XLA a part of a TensorFlow graph.

    Only where Keras runs on TensorFlow: Keras compiles whole models, not
    parts of a graph.
    """
    import tensorflow as tf

    @tf.function(jit_compile=True, reduce_retracing=True, autograph=False)
    def compiled(*args):
        with graph_for(None):
            return function(*args)

    return compiled


def graph(function, inputs):
    """Makes a TensorFlow graph of a function, for arrays of any size.

    Keras would trace it anew for the first three shapes or so, which takes
    seconds each time.

    Args:
        function: Function of a dictionary of tensors to tensors.
        inputs: Dictionary of arrays, of which dtypes and ranks count.

    Returns:
        Function of such a dictionary to arrays.
    """
    import tensorflow as tf

    signature = {
        name: tf.TensorSpec([None] * x.ndim, x.dtype, name)
        for name, x in inputs.items()
    }

    @tf.function(input_signature=[signature], autograph=False)
    def traced(inputs):
        with graph_for("tensorflow"):
            return function(inputs)

    def run(inputs):
        tensors = {name: tf.constant(x) for name, x in inputs.items()}
        # Called itself, it would warn of the other functions made here, as if
        # they were one that is traced again.
        found = traced.get_concrete_function()(tensors)
        return keras.tree.map_structure(lambda x: x.numpy(), found)

    return run


def batches_at_once() -> int:
    """How many batches TensorFlow is to decode at a time.

    On processors two, as operations one after another leave cores idle; or one
    for each core, at most 8, where operations have one thread.
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    if not _are_cpus(tf.config.list_logical_devices()):
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
    if not _are_cpus(tf.config.list_logical_devices()):
        return 1
    if _threads("intra") != 1:
        return 1
    cores = min(num_cores(), MOST_PARTS_AT_ONCE)
    return min(cores, _threads("inter") or cores)


def give_cores_to_batches():
    """Lets each core decode a batch of its own, for programs that decode much.

    The operations of a step are small: to share one among cores, and to wait
    for all of them, takes longer than many of them do. Without effect where
    there are more cores than batches at a time, and where TensorFlow has
    computed already, has other devices, or was told how many threads to have.
    """
    _give_cores(MOST_BATCHES_AT_ONCE)


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

    is_told = _threads("intra") or num_cores() > most
    if not is_told and _are_cpus(tf.config.list_physical_devices()):
        with contextlib.suppress(RuntimeError):  # it has computed
            tf.config.threading.set_intra_op_parallelism_threads(1)


def _are_cpus(devices):
    return all(device.device_type == "CPU" for device in devices)


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


def replica_context():
    """What joins the devices of a `tf.distribute` strategy, inside a step.

    Keras adds up the gradients of the devices, and has no name for adding up
    anything else. `None` outside of a step, or without a strategy; a strategy
    may have one device.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    if not tf.distribute.has_strategy():
        return None
    return tf.distribute.get_replica_context()


def strategy_scope(model):
    """Where a model's variables are made: in its `tf.distribute` strategy."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    return model.distribute_strategy.scope()


def size(x, axis):
    """The size of one axis.

    `ops.shape` makes operations on TensorFlow for each axis that is not known,
    the others' too.
    """
    if x.shape[axis] is not None:
        return x.shape[axis]
    if keras.backend.backend() != "tensorflow":
        return keras.ops.shape(x)[axis]
    import tensorflow as tf

    return tf.shape(x)[axis]


def summed_rows(gradient):
    """Adds up the rows of the same token in the gradient of an embedding.

    On TensorFlow it is a list of rows, one for each token.
    """
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def sum_over_devices(devices, gradients):
    """Adds up what the devices of a `replica_context` have of each gradient."""
    import tensorflow as tf

    return devices.all_reduce(tf.distribute.ReduceOp.SUM, gradients)


def update_on_devices(devices, function, variables, *values):
    """Calls a function of each variable, on each device for its copy.

    Args:
        devices: A `replica_context`, or `None`.
        function: Function of a `tf.Variable` and its values, which assigns.
        variables: Those of Keras, or of TensorFlow.
        *values: Lists of tensors, or dictionaries of them, each list with one
            for each variable.
    """

    def update(strategy, *values):
        for variable, *of_it in zip(variables, *values, strict=True):
            if isinstance(variable, keras.Variable):
                variable = variable.value
            if strategy is None:
                function(variable, *of_it)
            else:
                strategy.extended.update(
                    variable, function, args=of_it, group=False
                )

    if devices is None:
        update(None, *values)
    else:
        devices.merge_call(update, args=values)


def write_slice(x, position, update):
    """Writes over positions of axis 2, as `slices.write_slice` says.

    In place where TensorFlow can. Its `ops.slice_update` is an operation that
    XLA compiles, and keeps, for each shape it meets, in a graph that is not
    compiled too, and that TensorFlow Serving refuses on a CPU unless it is
    told otherwise.
    """
    import tensorflow as tf

    # As matrices, in which TensorFlow finds places in half of the time.
    sizes = [size(x, axis) for axis in range(1, len(x.shape))]
    width = sizes[2] if len(sizes) == 3 else 1
    y = tf.raw_ops.TensorStridedSliceUpdate(
        input=tf.reshape(x, [-1, sizes[1] * width]),
        begin=[0, position * width],
        end=[0, (position + size(update, 2)) * width],
        strides=[1, 1],
        value=tf.reshape(update, [-1, size(update, 2) * width]),
        begin_mask=0b01,
        end_mask=0b01,
    )
    return tf.reshape(y, [-1, *sizes])


def small_product(x, y, transpose_y=False):
    """Multiplies matrices `(B, N, T, S)` by `(B, N, S, U)`.

    Those of a decoding step, in a graph that is not compiled. On a CPU
    TensorFlow has oneDNN share products among threads, however small they are,
    which takes ten times as long as the product; this version of the operation
    it leaves alone, but has it for CPUs only.

    Args:
        x: Float tensor.
        y: Float tensor.
        transpose_y: Whether `y` is `(B, N, U, S)`.
    """
    if is_litert_graph() and x.shape[2] == 1:
        return _vector_product(x, y, transpose_y)
    if not _is_small_float(x):
        y = keras.ops.transpose(y, (0, 1, 3, 2)) if transpose_y else y
        return keras.ops.matmul(x, y)
    import tensorflow as tf

    return tf.switch_case(
        tf.raw_ops.DeviceIndex(device_names=["CPU"]),
        [
            lambda: tf.raw_ops.BatchMatMulV3(
                x=x, y=y, Tout=x.dtype, adj_y=transpose_y
            ),
            lambda: tf.matmul(x, y, transpose_b=transpose_y),
        ],
    )


def _vector_product(x, y, transpose_y):
    """Multiplies vectors `(B, N, 1, S)` by matrices, as `small_product` does.

    LiteRT's product of matrices would copy `y` first, into an order which is
    fast for many vectors.
    """
    if transpose_y:
        return keras.ops.expand_dims(keras.ops.sum(x * y, axis=-1), 2)
    x = keras.ops.expand_dims(keras.ops.squeeze(x, 2), 3)
    return keras.ops.sum(x * y, axis=2, keepdims=True)


def matrix_product(x, y):
    """Multiplies `(B, T, D)` by `(D, F)` in one operation of LiteRT."""
    import tensorflow as tf

    return tf.matmul(x, y)


def small_softmax(x):
    """Softmax of the last axis, without oneDNN as `small_product`."""
    if not _is_small_float(x):
        return keras.ops.softmax(x, axis=-1)
    import tensorflow as tf

    shares = tf.exp(x - tf.reduce_max(x, axis=-1, keepdims=True))
    total = tf.reduce_sum(shares, axis=-1, keepdims=True)
    return shares * tf.math.reciprocal(total)


def _is_small_float(x):
    return is_plain_graph() and x.dtype == "float32"


@functools.cache
def has_exact_softmax() -> bool:
    """Whether a softmax of bfloat16 errs by no more than its last bit.

    oneDNN and GPUs sum up in float32. TensorFlow's own for processors, where
    oneDNN does not know the dtype, is 8 % off for a large vocabulary.
    """
    import tensorflow as tf

    with tf.init_scope():  # now, not in a graph that is being traced
        logits = tf.cast(tf.linspace([-4.0], [4.0], 4096, axis=1), "bfloat16")
        shares, exact = (
            tf.cast(tf.nn.softmax(x), "float32")
            for x in (logits, tf.cast(logits, "float32"))
        )
        return bool(tf.reduce_max(abs(shares / exact - 1.0)) <= 2**-7)


def replace_entries(x, places, old, new, after):
    """Replaces one entry of each row, in place where it can.

    Nothing that sets entries does so in place. So what is there is taken away,
    which leaves exactly 0, and what is to be there added.

    Args:
        x: Float tensor `(M, V)`.
        places: Int32 tensor `(M,)`.
        old: The entries, `(M,)`, of the dtype of `x`.
        new: Those to be there, alike.
        after: Tensor to wait for, computed with what else reads `x`.
    """
    import tensorflow as tf

    rows = tf.range(tf.shape(x, out_type="int64")[0])
    # Int64, as TensorFlow counts entries of all rows in the dtype of these.
    indices = tf.stack([rows, tf.cast(places, "int64")], axis=1)
    with tf.control_dependencies([after]):
        return _add_at(_add_at(x, indices, -old), indices, new)


def wait_for(other, x):
    """Gives `x`, of which nothing is computed before `other` is there."""
    import tensorflow as tf

    with tf.control_dependencies([other]):
        return tf.identity(x)


def gather(x, places, axis, batch_dims=0):
    """Takes what is at places of an axis, on TensorFlow.

    With `batch_dims`, each row has places of its own. To count the rows of all
    one after another instead needs sizes, and what has a size that a LiteRT
    graph computes makes it arrange its memory anew.
    """
    import tensorflow as tf

    return tf.gather(x, places, axis=axis, batch_dims=batch_dims)


def gather_and_pass_on(table, ids):
    """Takes rows of a matrix, and passes it on to what uses it next.

    What comes back is the gradient of that; those of the rows are added to it
    where they belong, in place where it can.

    Args:
        table: Float tensor `(V, D)`.
        ids: Int32 tensor `(B, T)`.

    Returns:
        The rows `(B, T, D)`, and the matrix.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def gathered(table):
        def gradient(of_rows, of_table):
            return _add_at(of_table, tf.expand_dims(ids, -1), of_rows)

        return (tf.gather(table, ids), tf.identity(table)), gradient

    return gathered(table)


def _add_at(x, indices, updates):
    import tensorflow as tf

    if is_plain_graph():  # XLA does not have it; the other copies on CPUs
        return tf.raw_ops.ScatterNdNonAliasingAdd(
            input=x, indices=indices, updates=updates
        )
    return tf.tensor_scatter_nd_add(x, indices, updates)


def random_halves(like, seed_generator):
    """Draws int16 of any value, two from each random number of 32 bits.

    Each device of a strategy draws others, which Keras has no name for. And
    its `ops.view` would reshape the numbers, which TensorFlow does on the host.

    Args:
        like: Tensor of the shape to draw, whose last axis is even.
        seed_generator: A `keras.random.SeedGenerator`.
    """
    import tensorflow as tf

    shape = tf.shape(like)
    seed = seed_generator.next()
    devices = replica_context()
    if devices is not None:
        seed += tf.cast(devices.replica_id_in_sync_group, seed.dtype)
    numbers = tf.random.stateless_uniform(
        tf.concat([shape[:-1], [like.shape[-1] // 2]], axis=0),
        # Int32 from Keras's int64, as Keras casts it.
        tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32),
        # All of int32: within bounds, each number is divided by their distance.
        minval=None,
        maxval=None,
        dtype=tf.int32,
    )
    return tf.reshape(tf.bitcast(numbers, tf.int16), shape)


def adam_constants(step, learning_rate, beta_1, beta_2, epsilon):
    """What the updates of all weights by `update_by_adam` have in common."""
    import tensorflow as tf

    step, learning_rate, beta_1, beta_2, epsilon = (
        tf.cast(x, "float32")
        for x in (step, learning_rate, beta_1, beta_2, epsilon)
    )
    return {
        "lr": learning_rate,
        "beta1": beta_1,
        "beta2": beta_2,
        "beta1_power": beta_1**step,
        "beta2_power": beta_2**step,
        "epsilon": epsilon,
    }


def update_by_adam(variable, momentum, velocity, gradient, constants) -> bool:
    """Updates a weight and its moments by TensorFlow's own Adam.

    Returns:
        Whether it has: not in other dtypes than float32.
    """
    import tensorflow as tf

    if variable.dtype != tf.float32:
        return False
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.value.handle,
        v=velocity.value.handle,
        grad=tf.cast(summed_rows(gradient), "float32"),
        **constants,
    )
    return True
