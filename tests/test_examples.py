"""The examples of the public docstrings: those that state a result are run and must give it."""

import doctest
import inspect

import keras
import numpy as np
import pytest
from keras import ops

import tf_sparse_attention as tsa

PARTS = (tsa.layers, tsa.models, tsa.optimizers, tsa.data, tsa.generation, tsa.analysis)
NAMES = {name: getattr(part, name) for part in PARTS for name in part.__all__}


def examples():
    finder = doctest.DocTestFinder(recurse=False)
    for name, thing in NAMES.items():
        if inspect.isclass(thing) or inspect.isfunction(thing):
            names = {"keras": keras, "np": np, "ops": ops, "tsa": tsa, **NAMES}
            for found in finder.find(thing, name, globs=names):
                if any(example.want for example in found.examples):
                    yield pytest.param(found, id=name)


@pytest.mark.parametrize("example", list(examples()))
def test_an_example_gives_what_it_says(example):
    report = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert tried and not failed, "".join(report)


def test_every_layer_but_the_base_has_an_example():
    assert set(tsa.layers.__all__) - {example.id for example in examples()} == {"AttentionLayer"}
