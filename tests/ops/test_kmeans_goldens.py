"""The moving average equals the published implementation, step by step on its own numbers.

The published code mixes the heads when it counts members. The true counts are checked against ours; the state that
follows from the mixed ones is reproduced by handing them to the update.
"""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.goldens import goldens_of, read_case
from tests.programs import differentiate
from tf_sparse_attention.ops import kmeans

CASES = ["cold_decay0.999_heads2", "cold_decay0.9_heads2", "cold_decay0.999_heads1"]
CASES += ["warm8_decay0.999_heads2", "warm8_decay0.9_heads3"]

goldens = goldens_of("routing_transformer/kmeans_ema.npz")


def close(actual, expected):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(ops.convert_to_numpy(actual), expected, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize(("case", "number"), first([(case, n) for n in (1, 2, 3) for case in CASES], len(CASES)))
def test_a_step_is_the_published_one(goldens, case, number):
    settings, _ = read_case(goldens, case)

    def read(name, at=number):
        return goldens[f"{case}/{name}_{at}"]

    means = (read(name, number - 1) for name in ("means", "ema_means", "ema_count"))
    before = kmeans.State(*means, np.zeros((settings["n"], settings["K"]), "int32"))
    x = goldens[f"{case}/x"][number - 1]
    close(kmeans.scores(x, before.centroids), -read("dist"))
    np.testing.assert_array_equal(ops.convert_to_numpy(kmeans.nearest(x, before.centroids)), read("nearest"))

    def loss(t):
        return (settings["beta"] * kmeans.commitment(t["x"], read("nearest"), before.centroids),)

    (value,), gradient = differentiate(loss, {"x": x}, np.float32(1))
    close(value, read("loss"))
    close(gradient["x"], read("grad_loss_x"))
    exists = np.abs(x).sum((1, 3)) > 0  # the published code takes zero tokens for padding
    assert (~exists).sum(1).tolist() == settings["npad"]
    seen = kmeans.statistics(x, read("nearest"), settings["K"], exists)
    close(seen.counts, read("true_per_head_count"))
    after = kmeans.update(before, seen, settings["decay"])
    close(after.counts, before.counts - (1 - settings["decay"]) * (before.counts - read("true_per_head_count")))
    after = kmeans.update(before, seen._replace(counts=read("counted")), settings["decay"])
    close(after.counts, read("ema_count"))
    close(after.sums, read("ema_means"))
    close(after.centroids, read("means"))
    if case == "cold_decay0.999_heads1":
        close(read("counted"), read("true_per_head_count"))
