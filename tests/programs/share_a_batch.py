"""Lets several workers of LiteRT share a batch."""

import sys

import cases
import engines
import numpy as np

cases.make_weights("test", sys.argv[1])
engine = engines.LiteRT(sys.argv[1])
case = cases.Case("test", "greedy", batch=5, length=6)
whole = engine.prepare(case)()
assert whole.shape == (5, 6)
for num_workers in (2, 3):
    shared = engine.prepare(case, num_workers=num_workers)()
    np.testing.assert_array_equal(shared, whole)
