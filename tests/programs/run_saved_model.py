"""All that a program needs that calls an export.

It reads the calls from its input, and prints the results.
"""

import json
import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401  its operations are in the graph


def signature(function):
    return [
        {
            name: [spec.dtype.name, spec.shape.as_list()]
            for name, spec in specs.items()
        }
        for specs in (
            function.structured_input_signature[1],
            function.structured_outputs,
        )
    ]


results = {}
for kind, (path, batches, source_ids) in json.load(sys.stdin).items():
    loaded = tf.saved_model.load(path)
    translate = loaded.signatures["serving_default"]
    results[kind] = {
        "signatures": {
            name: signature(function)
            for name, function in loaded.signatures.items()
        },
        "batches": {},
    }
    for name, texts in batches.items():
        output = translate(text=tf.constant(texts, tf.string))
        results[kind]["batches"][name] = (
            [text.decode() for text in output["translation"].numpy()],
            output["score"].numpy().tolist(),
        )
    output = loaded.signatures["translate_ids"](
        source_ids=tf.constant(source_ids, tf.int32)
    )
    results[kind]["target_ids"] = output["target_ids"].numpy().tolist()
    results[kind]["score"] = output["score"].numpy().tolist()
results["modules"] = sorted(sys.modules)
json.dump(results, sys.stdout)
