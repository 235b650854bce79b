"""The devices of TensorFlow, and strategies over several."""

import contextlib

import keras


def leave_gpus_to_keras():
    """Keeps TensorFlow, which only reads text, from taking all GPU memory.

    For a backend that is not TensorFlow; once TensorFlow has seen its devices,
    it is too late, and nothing is done.
    """
    if keras.backend.backend() == "tensorflow":
        return
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


def are_cpus(devices) -> bool:
    """Whether all of TensorFlow's devices, logical or physical, are CPUs."""
    return all(device.device_type == "CPU" for device in devices)


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


def sum_over_devices(devices, tensors):
    """Adds up what the devices of a `replica_context` have of each tensor."""
    import tensorflow as tf

    return devices.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


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
