"""Searches for the best target, over any function that decodes one step.

A search does not depend on a model. It is called with `step`, a function

    logits, cache = step(token_ids, position, cache, ancestry)

of `token_ids` `(B, W)` int32, the tokens that the `W` hypotheses of each
sentence chose last, their `position` (scalar int32, from 0) and a `cache` of
any structure, to `logits` `(B, W, V)` of the tokens that follow, or, for a
search that `chooses_largest`, to `ScreenedLogits`. It computes in float32,
whatever the dtype of the logits.

`ancestry` `(B, W, T)` int32 says in which of the `W` slots a hypothesis was
at each position so far, so that a step finds what it has kept for it. It may
be `None` if there is only one slot. What a step keeps is never moved.
"""

from keras_transformer.search.beam import BeamSearch as BeamSearch
from keras_transformer.search.greedy import GreedySearch as GreedySearch
from keras_transformer.search.greedy import search_or_greedy as search_or_greedy
from keras_transformer.search.logits import (
    log_probabilities as log_probabilities,
)
from keras_transformer.search.sampling import Sampling as Sampling
from keras_transformer.search.sampling import seeds_of as seeds_of
from keras_transformer.search.sampling import wrap_int32 as wrap_int32
from keras_transformer.search.screening import ScreenedLogits as ScreenedLogits
from keras_transformer.search.search import Hypotheses as Hypotheses
from keras_transformer.search.search import Problem as Problem
from keras_transformer.search.search import Search as Search
