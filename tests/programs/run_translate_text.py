"""All that a program needs that translates text in files."""

import json
import sys

import numpy as np
import tensorflow_text  # noqa: F401  its operations are in the file
from ai_edge_litert.interpreter import InterpreterWithCustomOps
from tensorflow_text.core.pybinds import tflite_registrar


def translations_of(path, texts):
    loaded = InterpreterWithCustomOps(
        model_path=path,
        custom_op_registerers=tflite_registrar.SELECT_TFTEXT_OPS,
    )
    run = loaded.get_signature_runner("translate_text")
    # Shares its loops, here with sentences of other numbers and lengths.
    run_ids = loaded.get_signature_runner("translate_ids")
    ids = np.array([[4, 5, 6, 3], [5, 3, 0, 0]], "int32")
    expected = run_ids(source_ids=ids)["target_ids"]
    results = []
    for text in texts:
        found = run(text=np.array([text.encode()], dtype=object))
        results.append(found["translation"][0].decode())
        np.testing.assert_array_equal(
            run_ids(source_ids=ids)["target_ids"], expected
        )
    return results


texts = json.load(sys.stdin)
json.dump([translations_of(path, texts) for path in sys.argv[1:]], sys.stdout)
