"""Short distillation of each sparse attention towards the dense one that it took the place of."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.convert.swap.dense_attention import is_dense_attention, is_sparse
from tf_sparse_attention.convert.swap.recorded_calls import recorded_calls
from tf_sparse_attention.layers.attention.swapped_attention import SwappedAttention
from tf_sparse_attention.models.layer_sites import find_layer_sites
from tf_sparse_attention.types import Tensor

Pair = tuple[keras.layers.Layer, keras.layers.Layer]


class Healing(NamedTuple):
    """What `heal` did: errors of the first batch, which is not trained on.

    Attributes:
        before: by the path of an attention, the mean square of what its output differs from the dense one by, in parts
            of the mean square of the dense output.
        after: the same after the last step.
        steps: batches trained on.
    """

    before: dict[str, float]
    after: dict[str, float]
    steps: int

    def __str__(self) -> str:
        lines = [f"{path}: {self.before[path]:.4f} before, {self.after[path]:.4f} after" for path in self.before]
        return "\n".join([f"relative square error after {self.steps} steps", *lines])


def heal(
    dense: keras.Model,
    sparse: keras.Model,
    dataset: Iterable[Any],
    steps: int | None = None,
    optimizer: keras.optimizers.Optimizer | str | None = None,
    start_from_data: bool = True,
    verbose: bool = True,
) -> Healing:
    """Train each sparse attention of a model to give what the dense attention gave that it took the place of.

    Each is trained for itself, on the inputs that the dense attention has in the dense model, so that no gradient goes
    through more than one layer and errors do not add up. Only weights of sparse attention that are trainable change,
    with LoRA its kernels alone. Centroids of routing attention move as in training. The whole model may be trained
    on afterwards, as any.

    Args:
        dense: the model that was replaced.
        sparse: what `replace_attention` made of it; its attention is changed.
        dataset: batches of inputs as the models take them, or tuples that begin with those, as a `tf.data.Dataset` or a
            list; at least two. KerasHub's tasks take `dataset.map(model.preprocessor)`.
        steps: the most batches to train on. None: all.
        optimizer: a Keras optimizer or its name. None: Adam with a learning rate of 1e-4.
        start_from_data: whether centroids begin with tokens of the first batch. Default True.
        verbose: whether to show a progress bar. Default True.

    Returns:
        A `Healing`, which prints as a table.

    Raises:
        ValueError: If `sparse` has no attention in the place of one of `dense`, or none that trains, as where it is
            quantized, or `dataset` is none, or has fewer than two batches.

    Example:
        >>> inputs = keras.Input((None, 16))
        >>> attention = keras.layers.MultiHeadAttention(2, 8, name="attention")
        >>> dense = keras.Model(inputs, attention(inputs, inputs, use_causal_mask=True))
        >>> def make_layer(attention):
        ...     return tsa.layers.LocalAttention(**tsa.convert.arguments_of(attention), window=16)
        >>> sparse = tsa.convert.replace_attention(dense, make_layer)
        replaced  attention: MultiHeadAttention by LocalAttention
        >>> dataset = [np.random.default_rng(seed).normal(size=(2, 64, 16)) for seed in range(5)]
        >>> healing = tsa.convert.heal(dense, sparse, dataset, steps=4, verbose=False)
        >>> print(healing)
    """
    checks.check_optional_count("steps", steps)
    pairs = _pairs(dense, sparse)
    if not pairs:
        raise ValueError(
            "`sparse` must be what `replace_attention` made of `dense`. "
            f"Received: {sparse.name}, without attention in the place of one of {dense.name}."
        )
    layers = [layer for _, layer in pairs.values()]
    _check_they_train(sparse, layers)
    batches = _batches(dataset)
    first = next(batches, None)
    if first is None:
        raise ValueError("`dataset` must have at least two batches: one to measure, the others to train. Received: 0.")
    alignment = Alignment(dense, sparse, list(pairs.values()))
    if start_from_data:
        alignment.start_centroids(first)
    with _only_these_train(dense, sparse, layers):
        alignment.compile(keras.optimizers.Adam(1e-4) if optimizer is None else optimizer)
        before = alignment.predict_on_batch(first)
        count = _train(alignment, batches, steps, verbose)
        after = alignment.predict_on_batch(first)
    return Healing(_by_path(pairs, before), _by_path(pairs, after), count)


def _by_path(paths, errors):
    return {path: float(error) for path, error in zip(paths, errors, strict=True)}


def _train(alignment, batches, steps, verbose):
    """Train on batches, `steps` at most, and returns on how many."""
    progress = keras.utils.Progbar(steps, verbose=int(verbose))
    count = 0
    for batch in batches:
        progress.update(count := count + 1, [("error", float(alignment.train_on_batch(batch)))])
        if count == steps:
            break
    progress.update(count, finalize=True)
    if count == 0:
        raise ValueError("`dataset` must have at least two batches: one to measure, the others to train. Received: 1.")
    return count


class Alignment(keras.Model):
    """Model of the errors of sparse attention, float (layers,), for inputs of two models."""

    def __init__(self, dense: keras.Model, sparse: keras.Model, pairs: list[Pair]) -> None:
        super().__init__()
        self.dense, self.sparse, self.pairs = dense, sparse, pairs
        self.built = True  # both models are

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        return ops.stack([_error(layer, calls, training) for layer, calls in self._calls(inputs)])

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        return ops.mean(y_pred)

    def start_centroids(self, inputs: Any) -> None:
        """Move the centroids of routing attention, if there is any, to tokens of inputs."""
        if not any(_parts_with_centroids(layer) for _, layer in self.pairs):
            return
        for layer, calls in self._calls(inputs):
            x, masks, _ = calls[0]
            for part in _parts_with_centroids(layer):
                part.start_from_data(x, _token_mask(masks))

    def _calls(self, inputs):
        """Return for each pair the sparse layer and its calls: inputs and output of the dense one, masks of its own.

        The sparse model is called for the masks alone; a compiled program leaves the rest of it out.
        """
        with recorded_calls(layer for layer, _ in self.pairs) as dense:
            self.dense(inputs, training=False)
        with recorded_calls(layer for _, layer in self.pairs) as sparse:
            self.sparse(inputs, training=False)
        found = []
        for layer, new in self.pairs:
            both = zip(dense[id(layer)], sparse[id(new)], strict=True)
            found.append((new, [(theirs.inputs, own.arguments, theirs.output) for theirs, own in both]))
        return found


def _parts_with_centroids(layer):
    """Return the layers of routing attention with centroids of their own that a sparse layer is, or is made of."""
    attention = layer.attention if isinstance(layer, SwappedAttention) else layer
    return [part for part in getattr(attention, "parts", [attention]) if getattr(part, "centroids", None) is not None]


def _error(layer, calls, training):
    """Return the mean relative square error of a sparse layer over some calls of the dense one, a scalar."""
    errors = []
    for x, arguments, wanted in calls:
        # A node of a graph may return its scores too, a `SwappedAttention` may not have the argument.
        scores = {name: False for name in arguments if name == "return_attention_scores"}
        output = layer(ops.stop_gradient(x), **{**arguments, **scores, "training": training})
        output, wanted = (ops.cast(values, "float32") for values in (output, ops.stop_gradient(wanted)))
        mask = _token_mask(arguments)
        weights = 1.0 if mask is None else ops.cast(mask, "float32")[..., None]
        error, size = (ops.sum(weights * ops.square(values)) for values in (output - wanted, wanted))
        errors.append(error / ops.maximum(size, keras.config.epsilon()))  # a batch may be padding alone
    return sum(errors) / len(errors)


def _token_mask(arguments: dict[str, Any]) -> Tensor | None:
    """Return which tokens exist, bool (B, T), by the arguments of a call of a sparse layer, or None."""
    # The layers of a graph have `mask`, that of the query.
    names = ("query_mask", "mask", "key_mask")
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def _pairs(dense, sparse):
    """Return pairs of a dense attention and what took its place, by path, each layer once."""
    if not isinstance(sparse, type(dense)):
        raise ValueError(
            "`sparse` must be what `replace_attention` made of `dense`. "
            f"Received: a {type(sparse).__name__} for a {type(dense).__name__}."
        )
    new = {site.index_path: site.layer for site in find_layer_sites(sparse)}
    pairs: dict[str, Pair] = {}
    for site in find_layer_sites(dense):
        if not is_dense_attention(site.layer):
            continue
        layer = new.get(site.index_path)
        replaced = isinstance(layer, SwappedAttention) or (layer is not None and is_sparse(layer))
        if not replaced and (layer is None or not is_dense_attention(layer)):
            raise ValueError(
                "`sparse` must be what `replace_attention` made of `dense`. "
                f"Received: {sparse.name}, without attention at the place of {site.path} in {dense.name}."
            )
        if replaced and all(layer is not known for _, known in pairs.values()):
            pairs[site.path] = site.layer, layer
    return pairs


def _batches(dataset: Any) -> Iterator[Any]:
    """Return an iterator over the inputs of batches."""
    if isinstance(dataset, dict | str | bytes) or not hasattr(dataset, "__iter__"):
        raise ValueError(
            "`dataset` must be a list or a `tf.data.Dataset` of batches, `[batch, ...]` and not a batch alone. "
            f"Received: {type(dataset).__name__}."
        )
    return map(_inputs, dataset)


def _inputs(batch):
    inputs = batch[0] if isinstance(batch, tuple) else batch  # a list may be several inputs
    if isinstance(inputs, str | bytes):
        raise ValueError(
            "`dataset` must have batches of inputs as the models take them: of text what `dense.preprocessor` makes of "
            f"it. Received: {inputs!r:.40}."
        )
    return inputs


def _check_they_train(sparse: keras.Model, layers: list[keras.layers.Layer]) -> None:
    if not any(weight.trainable for layer in layers for weight in layer.weights) and not any(
        _parts_with_centroids(layer) for layer in layers
    ):
        raise ValueError(
            "`sparse` must have attention with weights that train: heal before `quantize`, or call `enable_lora` "
            f"after it; set `trainable` where it is False. Received: {sparse.name}, whose attention has none."
        )


@contextlib.contextmanager
def _only_these_train(dense: keras.Model, sparse: keras.Model, layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Context in which the weights of some layers train as they did, and those of both models else do not."""
    # Layers may be frozen around kernels of low rank that train.
    training = {id(weight) for layer in layers for weight in layer.weights if weight.trainable}
    weights = [weight for weight in (*dense.weights, *sparse.weights) if weight.trainable]
    frozen = [weight for weight in weights if id(weight) not in training]
    for weight in frozen:
        weight.trainable = False
    try:
        yield
    finally:
        for weight in frozen:
            weight.trainable = True
