"""Short distillation of each sparse attention from the dense attention it replaces ("healing")."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.convert.swap.dense_attention import is_dense_attention, is_sparse
from tf_sparse_attention.convert.swap.recorded_calls import recorded_calls
from tf_sparse_attention.layers.attention.swapped_attention import SwappedAttention
from tf_sparse_attention.models.swapped_model import find_layer_sites
from tf_sparse_attention.types import Tensor

Pair = tuple[keras.layers.Layer, keras.layers.Layer]


class Healing(NamedTuple):
    """Result of `heal`: errors on the first batch, which is not used for training.

    Attributes:
        before: relative squared error before training, by path of the attention: the mean square of the difference to
            the dense output, divided by the mean square of the dense output.
        after: relative squared error after the last step, by path.
        steps: number of training batches.
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
    """Train each sparse attention of a model to reproduce the output of the dense attention it replaces.

    Each sparse layer is trained separately, on the inputs of the dense attention in the dense model. Gradients pass
    through one layer only, and errors of different layers do not add up. Only the trainable weights of sparse attention
    change; with LoRA, these are the low-rank kernels. Centroids of routing attention move as in training. The whole
    model can be trained further afterwards.

    Args:
        dense: the model given to `replace_attention`.
        sparse: the model returned by `replace_attention`; its attention weights are changed.
        dataset: `tf.data.Dataset` or list of at least two batches. A batch is the inputs of the models, or a tuple that
            starts with these inputs. KerasHub's tasks take `dataset.map(model.preprocessor)`.
        steps: maximal number of training batches. None: all.
        optimizer: a Keras optimizer or its name. None: Adam with a learning rate of 1e-4.
        start_from_data: whether to initialize centroids with tokens of the first batch. Default: True.
        verbose: whether to show a progress bar. Default: True.

    Returns:
        A `Healing`, which prints as a table.

    Raises:
        ValueError: If `sparse` is not the result of `replace_attention` for `dense`, if its attention has nothing to
            train, for example because it is quantized, or if `dataset` is invalid or has fewer than two batches.

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
    pairs = attention_pairs(dense, sparse)
    if not pairs:
        raise ValueError(
            "`sparse` must be the result of `replace_attention` for `dense`. "
            f"Received: {sparse.name}, without a replaced attention of {dense.name}."
        )
    layers = [layer for _, layer in pairs.values()]
    _check_they_train(sparse, layers)
    batches = _batches(dataset)
    first = next(batches, None)
    if first is None:
        raise ValueError("`dataset` must have at least two batches: one to evaluate, others to train. Received: 0.")
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
    """Train on at most `steps` batches; return the number of batches."""
    progress = keras.utils.Progbar(steps, verbose=int(verbose))
    count = 0
    for batch in batches:
        progress.update(count := count + 1, [("error", float(alignment.train_on_batch(batch)))])
        if count == steps:
            break
    progress.update(count, finalize=True)
    if count == 0:
        raise ValueError("`dataset` must have at least two batches: one to evaluate, others to train. Received: 1.")
    return count


class Alignment(keras.Model):
    """Model that maps the inputs of both models to the error of each sparse attention, float32 (num_layers,)."""

    def __init__(self, dense: keras.Model, sparse: keras.Model, pairs: list[Pair]) -> None:
        super().__init__()
        self.dense, self.sparse, self.pairs = dense, sparse, pairs
        self.built = True  # both models are

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        return ops.stack([_error(layer, calls, training) for layer, calls in self._calls(inputs)])

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        return ops.mean(y_pred)

    def start_centroids(self, inputs: Any) -> None:
        """Initialize the centroids of routing attention, if any, with tokens of the inputs."""
        if not any(_parts_with_centroids(layer) for _, layer in self.pairs):
            return
        for layer, calls in self._calls(inputs):
            x, masks, _ = calls[0]
            for part in _parts_with_centroids(layer):
                part.start_from_data(x, _token_mask(masks))

    def _calls(self, inputs):
        """Return, per pair, the sparse layer and its calls: dense inputs, sparse call arguments and dense outputs.

        The sparse model is called only for its masks; compilation removes the rest of the computation.
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
    """Return the routing attention layers with centroids in a sparse layer: the layer itself or its parts."""
    attention = layer.attention if isinstance(layer, SwappedAttention) else layer
    return [part for part in getattr(attention, "parts", [attention]) if getattr(part, "centroids", None) is not None]


def _error(layer, calls, training):
    """Return the relative squared error of a sparse layer, a scalar, averaged over the calls of the dense layer."""
    errors = []
    for x, arguments, wanted in calls:
        # A layer in a functional graph may be called with the argument; `SwappedAttention` may not accept it.
        scores = {name: False for name in arguments if name == "return_attention_scores"}
        output = layer(ops.stop_gradient(x), **{**arguments, **scores, "training": training})
        output = output[0] if isinstance(output, tuple) else output
        output, wanted = (ops.cast(values, "float32") for values in (output, ops.stop_gradient(wanted)))
        mask = _token_mask(arguments)
        weights = 1.0 if mask is None else ops.cast(mask, "float32")[..., None]
        error, size = (ops.sum(weights * ops.square(values)) for values in (output - wanted, wanted))
        errors.append(error / ops.maximum(size, keras.config.epsilon()))  # a batch may be all padding
    return sum(errors) / len(errors)


def _token_mask(arguments: dict[str, Any]) -> Tensor | None:
    """Return the padding mask, bool (B, T), in the call arguments of a sparse layer, or None."""
    # Layers in a functional graph receive the query's mask as `mask`.
    names = ("query_mask", "mask", "key_mask")
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def attention_pairs(dense: keras.Model, sparse: keras.Model) -> dict[str, Pair]:
    """Return pairs of a dense attention and its replacement, by path; shared layers appear once."""
    if not isinstance(dense, keras.Model) or not isinstance(sparse, type(dense)):
        raise ValueError(
            "`sparse` must be the result of `replace_attention` for `dense`. "
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
                "`sparse` must be the result of `replace_attention` for `dense`. "
                f"Received: {sparse.name}, without an attention for {site.path} of {dense.name}."
            )
        if replaced and all(layer is not known for _, known in pairs.values()):
            pairs[site.path] = site.layer, layer
    return pairs


def _batches(dataset: Any) -> Iterator[Any]:
    """Return an iterator over the inputs of batches."""
    if isinstance(dataset, dict | str | bytes) or not hasattr(dataset, "__iter__"):
        raise ValueError(
            "`dataset` must be a list or a `tf.data.Dataset` of batches, not a single batch. "
            f"Received: {type(dataset).__name__}."
        )
    return map(_inputs, dataset)


def _inputs(batch):
    inputs = batch[0] if isinstance(batch, tuple) else batch  # a list may hold several inputs
    if isinstance(inputs, str | bytes):
        raise ValueError(
            "`dataset` must have batches of model inputs: apply `dense.preprocessor` to text. "
            f"Received: {inputs!r:.40}."
        )
    return inputs


def _check_they_train(sparse: keras.Model, layers: list[keras.layers.Layer]) -> None:
    if not any(weight.trainable for layer in layers for weight in layer.weights) and not any(
        _parts_with_centroids(layer) for layer in layers
    ):
        raise ValueError(
            "`sparse` must have attention with trainable weights: call `heal` before `quantize`, or call `enable_lora` "
            f"after `quantize`, and do not set `trainable` to False. Received: {sparse.name}, without any."
        )


@contextlib.contextmanager
def _only_these_train(dense: keras.Model, sparse: keras.Model, layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Freeze all weights of both models, except weights of the given layers, within the context."""
    # Keep the `trainable` of single weights: with LoRA, only the low-rank kernels of a layer train.
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
