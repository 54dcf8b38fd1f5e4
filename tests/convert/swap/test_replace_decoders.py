"""Decoders of KerasHub made sparse: the same logits and text where nothing is hidden, caches cut to the window."""

import inspect
import itertools

import keras
import numpy as np
import pytest
from keras import ops

from tests.convert.swap.swap_models import difference, routed
from tests.draws import first
from tests.pages import DOCS, text_between

keras_hub = pytest.importorskip("keras_hub")

from tests.convert.swap import decoder_models  # noqa: E402
from tests.convert.swap.decoder_models import FAMILIES, assert_greedy, complete, decoder, padded  # noqa: E402
from tf_sparse_attention.convert import arguments_of, replace_attention  # noqa: E402
from tf_sparse_attention.layers import (  # noqa: E402
    BlockSelectedAttention,
    GlobalLocalAttention,
    LocalAttention,
    MixedAttention,
    RoutingAttention,
)
from tf_sparse_attention.models.swapped_model import prompt_length_scope  # noqa: E402

LENGTH = 16
FAST = ("llama3", "gemma2", "gpt_oss")  # what others do too: scaled frequencies, caps and windows, sinks and biases
WITH_WINDOW = ("mistral", "mixtral", "gemma2", "gemma3", "gemma3n", "gemma4", "qwen2", "qwen3", "qwen3_moe", "gpt_oss")
# KerasHub's Qwen 2 does not generate with a window on TensorFlow. GPT-NeoX rotates the query of a step as position 0.
NO_DENSE_TEXT = ("qwen2", "gpt_neo_x")
# KerasHub keeps the states of linear attention of whole prompts, and makes the caches of Gemma 3 from images.
WHOLE_PROMPTS = ("gemma3", "qwen3_5", "qwen3_5_moe")


def families(names, default=FAST):
    return [pytest.param(name, marks=() if name in default else pytest.mark.full) for name in names]


def tokens(lengths=(LENGTH, 10)):
    return padded(lengths, LENGTH)


@pytest.fixture(scope="module")
def dense():
    models = {}

    def of_family(family):
        if family not in models:
            models[family] = decoder(family)
        return models[family]

    return of_family


def local(window=LENGTH, **options):
    return lambda attention: LocalAttention(**arguments_of(attention, window=window), **options)


def selected(attention):
    return BlockSelectedAttention(**arguments_of(attention), block_size=4, num_blocks=2)


def near_or_selected(attention):
    """A short window in the first layer, selected blocks in the second."""
    return (local(4) if "layer_0" in attention.path else selected)(attention)


def halves(attention):
    """Two windows that see everything, each with half of the heads and of the key heads."""
    arguments = {**arguments_of(attention, window=LENGTH), "num_heads": 2, "num_key_value_heads": 1}
    return MixedAttention([LocalAttention(**{**arguments, "name": name}) for name in ("first", "second")])


def generated(model, lengths=(4, 6), sampler="greedy"):
    """Return the tokens that a model writes after prompts of some lengths."""
    ids = tokens((LENGTH, LENGTH))["token_ids"]
    return decoder_models.generated(model, ids, lengths, sampler=sampler, run_eagerly=True)


def logits(model, inputs):
    return ops.convert_to_numpy(model(complete(model, inputs)))[inputs["padding_mask"] == 1]


def shorter(family):
    """Return arguments that make a decoder shorter, if its layers are alike."""
    return {} if "layer_types" in FAMILIES[family][1] or family in ("gemma2", "gemma4") else {"num_layers": 1}


@pytest.mark.parametrize("family", families(FAMILIES))
def test_a_window_as_long_as_the_sequence_gives_the_dense_logits(dense, family):
    model = decoder(family, **shorter(family)) if shorter(family) else dense(family)
    inputs, reports = tokens(), []
    sparse = replace_attention(model, local(), print_fn=reports.append)
    wanted, found = (logits(each, inputs) for each in (model, sparse))
    assert difference(wanted, found) < 1e-5 * abs(wanted).max()
    lines = reports[0].split("\n")
    assert len(lines) == (
        1 if shorter(family) or "linear_attention" in FAMILIES[family][1].get("layer_types", ()) else 2
    )
    assert all(line.startswith("replaced") for line in lines)
    assert not any(remark in reports[0] for remark in ("instead of None", "KerasHub ignores"))


@pytest.mark.full
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NO_DENSE_TEXT])
def test_greedy_text_is_that_of_the_dense_model(dense, family):
    sparse = replace_attention(dense(family), local(), print_fn=None)
    assert_same_text(dense(family), sparse)


@pytest.mark.full
@pytest.mark.parametrize("family", NO_DENSE_TEXT)
def test_greedy_text_is_that_of_full_passes(dense, family):
    sparse = replace_attention(dense(family), local(), print_fn=None)
    assert_greedy(sparse, generated(sparse), (4, 6))


def assert_same_text(one, other, **options):
    assert (generated(one, **options) == generated(other, **options)).all()


# KerasHub's config of Llama omits the argument.
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`compile:UserWarning")
@pytest.mark.parametrize("family", families(["llama3", "llama"], default=["llama3"]))
def test_tied_embeddings_stay_tied_in_logits_generation_and_files(family, tmp_path):
    model, inputs = decoder(family, tie_word_embeddings=True, num_layers=1), tokens()
    sparse = replace_attention(model, local(), print_fn=None)
    assert sparse.backbone.tie_word_embeddings and len(sparse.weights) == len(model.weights)
    assert difference(*(logits(each, inputs) for each in (model, sparse))) < 1e-4
    assert_same_text(model, sparse)
    sparse.save(tmp_path / "model.keras")
    assert difference(sparse(inputs), keras.models.load_model(tmp_path / "model.keras")(inputs)) == 0


@pytest.mark.parametrize("family", families(WITH_WINDOW, default=("mistral",)))
def test_the_smaller_of_the_own_window_and_the_one_asked_for_applies(family):
    name = next(name for name in ("sliding_window", "sliding_window_size") if name in FAMILIES[family][1])
    sizes = {"num_layers": 1} if family == "mistral" else {}
    short = decoder(family, **sizes, **{name: 3 - (family == "gpt_oss")})
    wide = decoder(family, **sizes, **{name: 9})  # with the same weights

    def where_there_is_one(attention):
        has_window = arguments_of(attention, window=LENGTH)["window"] < LENGTH
        return LocalAttention(**arguments_of(attention, window=3 if has_window else LENGTH))

    sparse = replace_attention(wide, where_there_is_one, print_fn=None)
    assert difference(logits(sparse, tokens()), logits(short, tokens())) < 1e-4


@pytest.mark.full
def test_windows_can_be_those_that_were_published():
    published = decoder("gpt_oss", sliding_window=4)
    model = decoder("gpt_oss", sliding_window=4)  # with the same weights
    for layer, window in zip(published.backbone.transformer_layers, (3, None), strict=True):
        layer.self_attention_layer.sliding_window = window  # KerasHub's see one more, on the other layers

    def make_layer(attention):
        window = 4 if "transformer_layer_0" in attention.path else LENGTH
        return LocalAttention(**{**arguments_of(attention), "window": window})

    sparse = replace_attention(model, make_layer, keep_windows=False, print_fn=None)
    assert difference(logits(sparse, tokens()), logits(published, tokens())) < 1e-4
    assert difference(logits(model, tokens()), logits(published, tokens())) > 1e-2


def cache_sizes(model):
    """Return the sizes of what a model carries from step to step, in numbers, by where they are."""
    found = {}

    class Recorder(keras_hub.samplers.GreedySampler):
        def __call__(self, next, prompt, cache, **kwargs):
            leaves = keras.tree.flatten_with_path(cache)
            found.update({"/".join(map(str, path)): int(np.prod(leaf.shape)) for path, leaf in leaves})
            return prompt

    model.compile(sampler=Recorder(), run_eagerly=True)
    model.generate(tokens((4, 4)), stop_token_ids=None)
    return found


def test_caches_have_the_length_of_the_window(dense):
    whole = sum(cache_sizes(dense("llama3")).values())
    assert whole == 2 * 2 * 2 * LENGTH * 2 * 8  # rows, layers, keys and values, positions, heads, channels
    sizes = cache_sizes(replace_attention(dense("llama3"), local(4), print_fn=None))
    keys = [size for name, size in sizes.items() if name.endswith(("key", "value"))]
    assert sum(keys) == whole * 4 / LENGTH
    assert sum(sizes.values()) < sum(keys) * 1.2  # positions of slots


@pytest.mark.parametrize(
    ("family", "num_layers", "make_layer"),
    first([("llama3", 1, selected), ("llama3", 2, near_or_selected), ("mistral", 2, routed)], 1),
)
def test_caches_go_on_where_the_shortest_prompt_ends(family, num_layers, make_layer):
    model, lengths = decoder(family, num_layers=num_layers), (3, 11)
    sparse = replace_attention(model, make_layer, print_fn=None)
    assert_greedy(sparse, generated(sparse, lengths), lengths)


@pytest.mark.full
@pytest.mark.parametrize("family", families(FAMILIES, default=("llama3",)))
@pytest.mark.parametrize("make_layer", first([near_or_selected, local(4)], 1))
def test_steps_of_any_number_of_tokens_equal_a_full_pass(family, make_layer):
    if family in WHOLE_PROMPTS:
        pytest.skip("its caches are made from whole prompts")
    model = replace_attention(decoder(family), make_layer, print_fn=None)
    inputs = complete(model, tokens((LENGTH, LENGTH)))
    ids, whole = inputs["token_ids"], ops.convert_to_numpy(model(inputs))
    for seed in range(3):
        cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, LENGTH), 4, replace=False))
        with prompt_length_scope(int(cuts[0])):
            arguments = list(inspect.signature(type(model).__bases__[-1]._build_cache).parameters)
            _, cache = model._build_cache(ids, **dict.fromkeys(arguments[2:]))
        for start, end in itertools.pairwise([*cuts, LENGTH]):
            index = ops.convert_to_tensor(start) if family == "smol_lm3" else int(start)  # which takes no integers
            logits, _, cache = model.call_with_cache(ids[:, start:end], cache, index)
            assert difference(logits, whole[:, start:end]) < 1e-4


@pytest.mark.full
@pytest.mark.parametrize("family", ["gemma3", "gemma4", "llama3"])
def test_layers_that_are_left_keep_the_caches_of_kerashub(family):
    model = decoder(family, num_layers=2)
    sparse = replace_attention(model, lambda x: None if "1" in x.path.split("/")[-2] else local()(x), print_fn=None)
    assert_same_text(model, sparse)


@pytest.mark.full
@pytest.mark.parametrize(("sampler", "options"), [("Beam", {"num_beams": 2}), ("Contrastive", {"k": 2, "alpha": 0.3})])
def test_samplers_that_copy_rows_take_the_caches(dense, sampler, options):
    sparse = replace_attention(dense("llama3"), local(), print_fn=None)
    sampler = getattr(keras_hub.samplers, f"{sampler}Sampler")(**options)
    assert_same_text(dense("llama3"), sparse, sampler=sampler)


@pytest.mark.full
def test_rows_with_positions_of_their_own_are_nan():
    sparse = replace_attention(decoder("gemma4"), local(), print_fn=None)
    inputs = complete(sparse, tokens())
    moved = inputs["position_ids"] + [[0], [1]]
    found = ops.convert_to_numpy(sparse({**inputs, "position_ids": moved}))
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()


@pytest.mark.full
def test_layers_that_share_keys_are_left(dense):
    model, reports = decoder("gemma4", num_layers=6, num_kv_shared_layers=2), []
    sparse = replace_attention(model, local(), print_fn=reports.append)
    assert [line[:8] for line in reports[0].split("\n")] == ["replaced"] * 2 + ["skipped "] * 4
    assert_same_text(model, sparse)


@pytest.mark.full
def test_frequencies_of_other_positions_are_not_replaced():
    model = decoder("smol_lm3")
    for layer in model.backbone.transformer_layers:
        layer.self_attn.rotary_embedding.inv_freq.assign([1.0, 0.5, 0.25, 0.125])
    with pytest.raises(ValueError, match="not those of its `rope_theta`"):
        replace_attention(model, local())


@pytest.mark.full
def test_the_sampler_is_that_of_the_dense_model():
    model = decoder("llama3", num_layers=1)
    model.compile(sampler=keras_hub.samplers.TopKSampler(k=7, seed=3))
    sparse = replace_attention(model, local(), print_fn=None)
    assert sparse.sampler.get_config() == model.sampler.get_config() and sparse.sampler is not model.sampler


@pytest.mark.full
def test_a_selection_that_looks_ahead_is_reported():
    model = decoder("llama3", num_layers=1)
    for selection, remarks in [("nearest", 0), ("top_k", 1)]:
        sizes = {"num_clusters": 2, "cluster_size": 4, "share_qk": False, "selection": selection}
        reports = []
        replace_attention(
            model, lambda x, sizes=sizes: RoutingAttention(**arguments_of(x), **sizes), print_fn=reports.append
        )
        assert reports[0].count("its selection is not causal") == remarks


@pytest.mark.full
def test_a_preset_is_loaded_by_a_program_that_has_replaced_nothing(tmp_path, run_python):
    inputs = tokens((LENGTH, LENGTH))
    sparse = replace_attention(decoder("llama"), near_or_selected, print_fn=None)
    sparse.save_to_preset(str(tmp_path))
    np.savez(tmp_path / "wanted.npz", logits=sparse(inputs), **inputs)
    code = f"""
import keras_hub, numpy as np, tf_sparse_attention as tsa
tsa.convert.register_presets()
found = np.load(r"{tmp_path}/wanted.npz")
for task in (keras_hub.models.CausalLM, keras_hub.models.LlamaCausalLM):
    model = task.from_preset(r"{tmp_path}", preprocessor=None)
    logits = model({{name: found[name] for name in ("token_ids", "padding_mask")}})
    print(type(model).__name__, np.abs(logits - found["logits"]).max())
"""
    for line in run_python(code).splitlines():
        name, error = line.split()
        assert name == "SwappedLlamaCausalLM" and float(error) < 1e-6


@pytest.mark.full
@pytest.mark.parametrize("family", families(["llama3", "gpt_oss"], default=["llama3"]))
def test_parts_take_heads_and_key_heads_in_order(dense, family):
    sparse = replace_attention(dense(family), halves, print_fn=None)
    assert difference(*(logits(model, tokens()) for model in (dense(family), sparse))) < 1e-4


def results(model, inputs):
    """Return logits, or the states of Gemma 3n, whose logits KerasHub computes with embeddings from before loading."""
    return (model.backbone if "Gemma3n" in type(model).__name__ else model)(inputs)


# KerasHub's tasks do not save how they were compiled.
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`compile:UserWarning", "ignore:Skipping variable loading for opt:UserWarning")
@pytest.mark.parametrize("family", families(FAMILIES, default=("gemma2",)))
def test_it_trains_and_is_saved_as_a_file_and_as_a_preset(dense, family, tmp_path):
    sparse = replace_attention(dense(family), local(4), print_fn=None)
    inputs = complete(sparse, tokens((LENGTH, LENGTH)))
    if family in FAST:
        sparse.backbone.enable_lora(2)
        trained = [w for w in sparse.trainable_weights if not w.path.endswith("bias")]
        assert len(trained) == 2 * 2 * 2  # of queries and values of two layers
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sparse.compile(keras.optimizers.Adam(1e-2), loss, run_eagerly=True)
    dataset = [keras.tree.map_structure(ops.convert_to_tensor, inputs)]
    losses = [np.ravel(sparse.train_on_batch(dataset[0], inputs["token_ids"]))[0] for _ in range(3)]
    assert losses[-1] < losses[0]
    sparse.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert difference(results(sparse, inputs), results(loaded, inputs)) < 1e-6
    sparse.save_to_preset(str(tmp_path / "preset"))
    loaded = keras_hub.models.CausalLM.from_preset(str(tmp_path / "preset"), preprocessor=None)
    assert isinstance(loaded, getattr(keras_hub.models, f"{FAMILIES[family][0]}CausalLM"))
    assert difference(results(sparse, inputs), results(loaded, inputs)) < 1e-6


@pytest.mark.full
def test_arguments_that_a_layer_does_not_take_over_are_reported():
    def bare(attention):
        names = ("num_heads", "num_key_value_heads", "key_dim", "use_bias", "use_output_bias", "position")
        arguments = arguments_of(attention)
        return LocalAttention(**{name: arguments[name] for name in names}, window=LENGTH)

    reports = []
    replace_attention(decoder("gpt_oss", num_layers=1), bare, print_fn=reports.append)
    for remark in ("use_sink=False instead of True", "rotary_type='linear' instead of 'yarn'"):
        assert remark in reports[0]


def test_decoders_that_cannot_be_replaced_are_errors(subtests):
    def with_global(attention):
        return GlobalLocalAttention(**arguments_of(attention), window=4)

    llama = decoder("llama", num_layers=1)
    for message, model, make_layer in [
        ("can be causal for .*_self_attention_layer", llama, with_global),
        ("it is already sparse", replace_attention(llama, local(), print_fn=None), local()),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            replace_attention(model, make_layer)
    attention = type(llama.backbone.transformer_layers[0]._self_attention_layer)
    with pytest.raises(ValueError, match="`attention` must be built"):
        arguments_of(attention(4, 2))


@pytest.mark.full
def test_a_window_that_kerashub_ignores_on_jax_is_reported(run_jax):
    found = run_jax(
        """
from tests.convert.swap.decoder_models import decoder
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.layers import LocalAttention
model = decoder("qwen3", num_layers=1)
replace_attention(model, lambda attention: LocalAttention(**arguments_of(attention, window=9)))
"""
    )
    assert "KerasHub ignores this window on jax, so the dense model's results differ" in found


@pytest.mark.large
@pytest.mark.filterwarnings("ignore")
def test_the_table_of_decoders_is_what_is_found():
    from docs.tables import decoders

    marks = "<!-- decoders -->", "<!-- /decoders -->"
    assert text_between(DOCS / "converting.md", marks) == decoders.table()


@pytest.mark.full
def test_attention_in_two_places_keeps_the_caches_of_kerashub(dense):
    sparse = replace_attention(dense("llama3"), local(4), print_fn=None)
    first, second = sparse.backbone.transformer_layers
    vars(second)["_self_attention_layer"] = first._self_attention_layer
    assert_greedy(sparse, generated(sparse, (4, 4)), (4, 4))
