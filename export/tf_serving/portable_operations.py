"""Lists the operations that TensorFlow and tensorflow-text run on a CPU.

    pip install 'tensorflow-cpu==2.12.*' 'tensorflow-text==2.12.*'
    python portable_operations.py > portable_ops.txt

keras_transformer/serving/portable_ops.txt was made with it, in Python 3.11.
TensorFlow Serving, from 2.12 to this day, is built with TensorFlow's own
kernels and those of tensorflow-text.
"""

import tensorflow as tf
import tensorflow_text
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels

print(f"# Operations on a CPU of tensorflow {tf.__version__} and")
print(f"# tensorflow-text {tensorflow_text.__version__}.")
print("# Made by export/tf_serving/portable_operations.py.")
registered = op_def_pb2.OpList.FromString(
    pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
)
on_cpu = {
    kernel.op
    for kernel in kernels.get_all_registered_kernels().kernel
    if kernel.device_type in ("CPU", "DEFAULT")
}
for name in sorted({operation.name for operation in registered.op} & on_cpu):
    print(name)
