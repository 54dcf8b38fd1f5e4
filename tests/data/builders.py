"""Data sets of TFDS without a download."""

import tensorflow_datasets as tfds


def register(name, features, **splits):
    """Register a data set by the name of its class, with a dictionary of features and a list of examples per split."""

    if isinstance(features, dict):
        features = tfds.features.FeaturesDict(features)

    def info(self):
        return tfds.core.DatasetInfo(builder=self, features=features)

    def split_generators(self, download_manager):
        return {split: list(enumerate(examples)) for split, examples in splits.items()}

    members = {"VERSION": tfds.core.Version("1.0.0"), "_info": info, "_split_generators": split_generators}
    members["_generate_examples"] = enumerate
    type(name, (tfds.core.GeneratorBasedBuilder,), {**members, "__module__": __name__})
