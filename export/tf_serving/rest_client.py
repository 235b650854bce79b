"""Translates lines with TensorFlow Serving over REST, in plain Python.

    python rest_client.py "A man rides a bike." "Two dogs play."
    python rest_client.py < test.en > test.de

Needs nothing but Python 3.11 or later.
"""

import argparse
import http.client
import itertools
import json
import os
import sys
import urllib.error
import urllib.request

# Lines per request.
LINES = 64
# What is raised by an answer that is cut short or not TensorFlow Serving's.
NO_TRANSLATIONS = (
    KeyError,
    TypeError,
    ValueError,
    http.client.HTTPException,
)


def translate(texts, url, model, signature="serving_default", timeout=60.0):
    """Asks a server for the translations of some texts.

    Args:
        texts: A list of strings.
        url: URL of the server, such as `http://localhost:8501`.
        model: Name of the model on the server; `name/versions/2` for a version.
        signature: Name of the signature to call.
        timeout: Seconds to wait for an answer.

    Returns:
        A list of strings, the best for each text, and a list of their scores
        in nats.

    Raises:
        ValueError: If `url`, with `model`, is not a URL.
        OSError: If there is no answer.
        RuntimeError: If the server answers with an error, or with anything but
            translations.
    """
    content = {"signature_name": signature, "inputs": {"text": texts}}
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v1/models/{model}:predict",
        data=json.dumps(content).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            outputs = json.load(response)["outputs"]
        translations, scores = outputs["translation"], outputs["score"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(
            f"The server answered {error.code}: {_reason(error)}"
        ) from error
    except http.client.InvalidURL as error:
        raise ValueError(str(error)) from error
    except NO_TRANSLATIONS as error:
        raise RuntimeError(
            f"The server's answer is no translation: {error!r}"
        ) from error
    if translations and isinstance(translations[0], list):
        # Several per text, best first.
        translations = [best for best, *_ in translations]
        scores = [best for best, *_ in scores]
    return translations, scores


def _reason(answer):
    try:
        content = answer.read()
    except http.client.IncompleteRead as error:
        content = error.partial
    try:
        return json.loads(content)["error"]
    except (KeyError, TypeError, ValueError):  # not TensorFlow Serving
        return content.decode(errors="replace")[:200]


def _piped_lines():
    sys.stdin.reconfigure(encoding="utf-8", newline="\n")
    for line in sys.stdin:
        yield line.rstrip("\r\n")


def main(arguments=None):
    """Translates the arguments or, without any, standard input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", help="by default piped lines")
    parser.add_argument("--url", default="http://localhost:8501")
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--signature", default="serving_default")
    options = parser.parse_args(arguments)
    lines = iter(options.texts or _piped_lines())
    try:
        while texts := list(itertools.islice(lines, LINES)):
            translations, _ = translate(
                texts, options.url, options.model, options.signature
            )
            for translation in translations:
                print(translation.replace("\n", " ").replace("\r", " "))
        sys.stdout.flush()  # else Python does on exit, with a traceback
    except UnicodeDecodeError as error:
        sys.exit(f"The text is not UTF-8: {error}")
    except BrokenPipeError:  # the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"{options.url}: {error}")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # as all input is
    main()
