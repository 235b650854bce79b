"""Searches for the best target, over any function that decodes one step.

A search knows no model. It is called with `step`, a function

    logits, cache = step(token_ids, position, cache)

of `token_ids` `(B,)` int32, the tokens chosen last, their `position` (scalar
int32, from 0) and a `cache` of any structure, to float32 `logits` `(B, V)`
of the tokens that follow.
"""

from keras_transformer.search.greedy import GreedySearch as GreedySearch
