"""Saves a translator until it is killed, at each moment of a save.

Each in a process; these are forked to import TensorFlow once.
"""

import os
import signal
import sys

from keras_transformer.translator import Translator


def save_until(moment, folder):
    translator = Translator.load(folder)
    for variable in translator.model.trainable_variables:
        variable.assign(variable.numpy() + 1)
    moments = []

    def killing(function):
        def kill(*arguments):
            moments.append(function.__name__)
            if len(moments) == moment:
                if function.__name__ == "fsync":  # half is on the disk
                    path = os.readlink(f"/proc/self/fd/{arguments[0]}")
                    if os.path.isfile(path):  # and no folder
                        os.truncate(path, os.path.getsize(path) // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return kill

    for function in (os.fsync, os.replace, os.remove):
        setattr(os, function.__name__, killing(function))
    translator.save(folder, overwrite=True)


for moment, folder in enumerate(sys.argv[1:], start=1):
    child = os.fork()
    if not child:
        save_until(moment, folder)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.WIFSIGNALED(status) and os.WTERMSIG(status))
