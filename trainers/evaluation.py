"""The evaluation of a trained model: what `trainers.evaluate` does once its flags are read."""

import keras
import ml_collections
from absl import flags
from ml_collections.config_dict import placeholder

import tf_sparse_attention as tsa
from tf_sparse_attention.data.official_counts import official_words
from trainers import components, compression, scoring, strategy, workdir
from trainers.configs import base
from trainers.files import write_json
from trainers.partial import Partial, Progress

WINDOWS = ("batch_size", "sequence_length", "packed", "mask_rate", "overlap")
# By section: all that an evaluation reads, save what the trained model is made of.
SETTINGS = {
    "data": (*components.SOURCE_SETTINGS, *WINDOWS),
    "train": ("jit_compile", "steps_per_execution", "num_logical_cpus"),
}


def changeable():
    """Returns the settings that an evaluation may change, all None: a locked `ml_collections.ConfigDict`."""
    defaults = base.get_config()
    settings = {
        section: {name: placeholder(defaults[section].get_type(name)) for name in names}
        for section, names in SETTINGS.items()
    }
    return ml_collections.ConfigDict(settings).lock()


def define_flags(flag_values=flags.FLAGS):
    """Defines a flag for every setting that may change, such as --config.data.path.

    Args:
        flag_values: `absl.flags.FlagValues` that gets them.

    Returns:
        Function that gives `changeable()` with what the flags say, to be called once they are parsed.
    """
    # Flags of absl itself: those of `config_flags` meet a name that there is not with a bare AttributeError.
    define = {
        bool: flags.DEFINE_boolean,
        float: flags.DEFINE_float,
        int: flags.DEFINE_integer,
        str: flags.DEFINE_string,
    }
    changes = changeable()
    holders = {}
    for section, names in SETTINGS.items():
        for name in names:
            make, text = define[changes[section].get_type(name)], "Replaces that of the training."
            holders[section, name] = make(f"config.{section}.{name}", None, text, flag_values=flag_values)

    def read():
        for (section, name), holder in holders.items():
            changes[section][name] = holder.value
        return changes

    return read


def evaluate(folder, split="test", changes=None):
    """Scores the model of a work folder on every token of a split, once, and writes the figures there.

    Memory does not grow with the text. An evaluation that is killed goes on where it was when it is started again.

    Args:
        folder: The work folder.
        split: Name of the split, or a part of one in the syntax of TFDS.
        changes: `changeable()` with the settings that replace those of the training; None: none.

    Returns:
        Dictionary: "split", "data" (name of the text), "looks_ahead" (True, where heads of a causal model do), the
        figures of `scoring.score`, "words_are" ("official" where the words are the published count of a complete split,
        else "counted"), "gzip -9" and "xz -9" in bits per byte (unless hidden tokens are scored), "backend",
        "tokenizer" and its "vocabulary_size", "settings" (of the windows), and "path", the file they were written to.

    Raises:
        ValueError: If there is no trained model, or a setting is wrong.
    """
    config = workdir.load_config(folder)
    trained_on = workdir.load_source(folder)["fingerprint"]
    config = _changed(config, changes or changeable())
    source = components.make_source(config)
    tokenizer = workdir.load_tokenizer(folder)
    store = tsa.data.open_token_store(source, tokenizer, split)
    sizes = {name: config.data[name] for name in WINDOWS}
    other_text = None if source.fingerprint == trained_on else source.name.replace("/", "-")
    path = workdir.evaluation_path(folder, split, other_text)
    identity = [source.fingerprint, split, sizes, workdir.model_version(folder)]
    partial = Partial(path.with_suffix(".partial.json"), identity)
    devices = strategy.choose(config)
    with devices.scope():
        execution = devices.execution(config.train.jit_compile, config.train.steps_per_execution)
        model = workdir.load_model(folder)
        model.shrink_windows()
        scorer = scoring.make_scorer(model, execution, config.data.batch_size)
        # Of several processes each would have to go on at the same batch, which files of their own cannot promise.
        kept = partial if devices.is_alone else None
        figures = scoring.score(scorer, store, devices, **sizes, partial=kept, progress=Progress)
    backbone = model.backbone
    ahead = {"looks_ahead": True} if backbone.causal and not backbone.causal_selection else {}
    result = {"split": split, "data": source.name, **ahead, **_by_official_words(figures, source.name, split, store)}
    if config.data.mask_rate == 0:  # else what is scored are some of the bytes, seen from both sides
        result |= compression.compressed_bits_per_byte(source.documents(split))
    kind = {"tokenizer": type(tokenizer).__name__, "vocabulary_size": tokenizer.vocabulary_size}
    result |= {"backend": keras.backend.backend(), **kind, "settings": sizes}
    result["path"] = str(path)
    if devices.is_chief:
        write_json(path, result)
        partial.remove()
    return result


def _by_official_words(figures, name, split, store):
    """Returns the figures with the perplexity per official word where there is an official count of all the text."""
    words = official_words(name, split, store.num_documents) if figures["tokens"] == store.num_tokens else None
    if words is None:
        return {**figures, "words_are": "counted"}
    result = scoring.figures(figures["nats"], figures["tokens"], figures["bytes"], words)
    return {**figures, **result, "words_are": "official"}


def _changed(config, changes):
    """Returns the configuration with the settings that are given; another text brings all its settings."""
    if changes.data.tfds is not None or changes.data.path is not None:
        defaults = base.get_config().data
        for name in set(components.SOURCE_SETTINGS) - {"data_dir"}:
            config.data[name] = defaults[name]
    for section in SETTINGS:
        with config[section].unlocked(), config[section].ignore_type():
            config[section].update(components.given(changes[section]))
    return config


def as_text(result):
    """Returns the figures for a person, a line each."""
    rows = [
        ("text", f"{result['data']}, {result['split']}"),
        *([("note", "heads look ahead: no likelihood of the text")] if result.get("looks_ahead") else []),
        ("bytes, words, tokens", f"{result['bytes']}, {result['words']}, {result['tokens']}"),
        (
            "the words are",
            "the official count" if result["words_are"] == "official" else "counted, split at white space",
        ),
        ("bits per byte", f"{result['bits_per_byte']:.4f}"),
        *((f"  {name}", f"{result[name]:.4f}") for name in ("gzip -9", "xz -9") if name in result),
        ("perplexity per token", _number(result["perplexity"])),
        *_per_word(result),
        ("seconds", f"{result['seconds']:.1f}"),
    ]
    return "\n".join(f"{name:<22}{value}" for name, value in rows)


def _per_word(result):
    if result["settings"]["mask_rate"]:
        return [("scored", f"{result['tokens']} hidden tokens alone")]
    return [("perplexity per word", _number(result["perplexity_per_word"]) if result["words"] else "no words")]


def _number(value):
    return "beyond any float" if value is None else f"{value:.5g}"
