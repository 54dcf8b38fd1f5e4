"""The audit on the torch backend, where torch is installed."""

import importlib.util

import pytest

CODE = """
from tests.analysis.causality.audited_layers import *
from tf_sparse_attention.analysis import causality_report

keras.utils.set_random_seed(0)

def audit(target, **options):
    return causality_report(target, sequence_length=6, hidden_dim=4, num_cuts=3, **options)

for quick in (False, True):
    assert audit(language_model(attention()), quick=quick).is_causal
    report = audit(language_model(attention(causal=False, name="bad")), quick=quick)
    assert {leak.layer for leak in report.leaks} == {"bad"} and report.leaks[0].heads == (0, 1), report
report = audit(language_model(attention(), BestTokens(2, name="best")))
assert report.max_gradient == 0 and [leak.layer for leak in report.leaks] == ["best"], report
tracker = keras.Sequential([Tracker(), Ahead(strength=1e-8)])
assert [leak.check for leak in audit(tracker, training=True).leaks] == ["gradient"]
assert int(tracker.layers[0].calls) == 0
from tests.analysis.causality import test_zoo
names = {}
for block in test_zoo.blocks(test_zoo.TEXT, "python"):
    exec(block, names)
for row in test_zoo.ROWS:
    test_zoo.test_the_audit_says_what_the_page_says(row, names)
print(keras.backend.backend())
"""


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch, which is not installed")
def test_verdicts_are_the_same_on_torch(run_python):
    assert "torch" in run_python(CODE, KERAS_BACKEND="torch")
