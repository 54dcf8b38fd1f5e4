"""Trains, evaluates, samples and saves a language model where TensorFlow cannot be imported.

`python -m tests.without_tensorflow FOLDER` is run by a test in a process of its own, with KERAS_BACKEND=jax; what it
prints, as JSON, is what the test looks at.
"""

import json
import pathlib
import sys

HIDDEN = {"tensorflow", "tensorflow_text", "tensorboard", "tf2onnx"}


class Without:
    """The finders of modules that there are, for which some packages do not exist."""

    def __init__(self, packages):
        self._packages, self._finders = packages, list(sys.meta_path)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self._packages:
            return None
        found = (finder.find_spec(name, path, target) for finder in self._finders)
        return next((spec for spec in found if spec is not None), None)


def message(function):
    """Return what the error of a call says."""
    try:
        function()
    except (ImportError, ValueError) as error:
        return str(error)
    return ""


def main(folder):
    sys.meta_path[:] = [Without(HIDDEN)]
    import keras

    import tf_sparse_attention as tsa

    source = tsa.data.open_source(path=folder / "texts", data_dir=folder / "without")
    lines = tsa.data.open_pairs("en", "fr", path=folder / "pairs.jsonl")
    read = {
        "pairs": [text.decode() for side in lines for text in side.documents("train")],
        "labels": tsa.data.open_labeled("en", "fr", path=folder / "pairs.jsonl").labels("train"),
        "samples": [samples.tolist() for samples in tsa.data.open_audio(path=folder / "spoken").recordings("train")],
        "frames": [u.features.shape for u in tsa.data.open_speech(path=folder / "spoken").utterances("train")],
        "images": message(lambda: tsa.data.open_images(path=folder / "images").shape),
        "imported": "tensorflow_datasets" in sys.modules,
    }
    subwords = tsa.data.train_subwords(source.documents("train"), 60)
    tokenizer = tsa.data.ByteTokenizer()
    store = tsa.data.open_token_store(source, tokenizer, "train")
    batches = tsa.data.training_batches(store, batch_size=2, sequence_length=32, seed=1)
    heads = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 8, "num_clusters": 2, "cluster_size": 8}
    model = tsa.models.LanguageModel(tsa.models.Backbone(258, 1, 16, [heads], 32))
    model.compile("adam", loss=tsa.models.language_model_loss())
    history = model.fit(batches.dataset(), steps_per_epoch=5, shuffle=False, verbose=0)
    loss = model.evaluate(tsa.data.evaluation_batches(store, 2, 32).dataset(), verbose=0)
    model.save(folder / "model.keras")
    again = keras.saving.load_model(folder / "model.keras")
    return {
        "read": read,
        "losses": history.history["loss"] + [loss],
        "sample": again.generate("text", 6, tokenizer=tokenizer),
        "documents": len(list(source.documents("train"))),
        "subwords": subwords.detokenize(subwords.tokenize("text 1")),
        "batch": batches[3][1].tolist(),
        "export": message(lambda: tsa.export),
        "wordpiece": message(lambda: tsa.data.WordPieceTokenizer(["[UNK]", "a"]).tokenize("a")),
        "imported": sorted(HIDDEN & set(sys.modules)),
    }


if __name__ == "__main__":
    print(json.dumps(main(pathlib.Path(sys.argv[1]))))
