"""Text on the torch backend, where it is installed: the same as on the others, sampled too."""

import json

import numpy as np
import pytest

TEXTS = """
import json, os, keras, numpy as np
import tf_sparse_attention as tsa

model = keras.saving.load_model(os.environ["MODEL"])
strategies = ["greedy", tsa.generation.Sampling(top_p=0.9), tsa.generation.BeamSearch(num_beams=2)]
prompts = np.array([[3, 4, 5], [6, 7, 8]])
texts = [model.generate(prompts, max_length=9, strategy=strategy, seed=3) for strategy in strategies]
print(json.dumps([[np.asarray(text).tolist() for text in rows] for rows in texts]))
"""


def test_sampled_text_is_that_of_the_other_backends(run_python, tmp_path):
    pytest.importorskip("torch")
    import tf_sparse_attention as tsa

    parts = [
        {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 4},
        {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 2, "cluster_size": 4},
    ]
    tsa.models.LanguageModel(tsa.models.Backbone(20, 1, 16, parts, seed=0)).save(tmp_path / "model.keras")
    runs = [
        json.loads(run_python(TEXTS, KERAS_BACKEND=backend, MODEL=str(tmp_path / "model.keras")).splitlines()[-1])
        for backend in ("torch", "tensorflow")
    ]
    assert runs[0] == runs[1]
    assert len(np.unique(runs[0][1])) > 3  # sampled, and no padding
