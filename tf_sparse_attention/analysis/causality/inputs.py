"""Inputs of the causality audit, random or given, and replacement of their later positions."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_sparse_attention.types import Tensor

# Inputs with these names describe positions and have no content, so the audit never replaces them.
_FIXED = {
    "mask": lambda shape: np.ones(shape, "int32"),
    "segment": lambda shape: np.zeros(shape, "int32"),
    "position": lambda shape: np.broadcast_to(np.arange(shape[1], dtype="int32"), shape),
}


class AuditInputs:
    """Input arrays of the target, some of which vary.

    Integer arrays (B, T) are token ids, floating-point arrays (B, T, D, ...) are vectors; both vary. Boolean arrays,
    and arrays with "mask", "segment" or "position" in their names, are constant.

    Args:
        structure: an array, or a list or dictionary of arrays.
        vocabulary_size: number of token ids. None: one more than the largest id in `structure`.
        names: names of the arrays in the order of `keras.tree.flatten`. None: their keys in `structure`.
    """

    def __init__(self, structure: Any, vocabulary_size: int | None = None, names: Sequence[str] | None = None) -> None:
        paths = keras.tree.flatten_with_path(structure)
        self.structure = structure
        self.arrays = [keras.ops.convert_to_numpy(array) for _, array in paths]
        names = names or [str(path[-1]) if path else "" for path, _ in paths]
        self.is_tokens, self.is_vectors = [], []
        for name, array in zip(names, self.arrays, strict=True):
            floating = keras.backend.is_float_dtype(str(array.dtype))
            varies = array.dtype != bool and not _is_fixed(name)
            self.is_tokens.append(varies and not floating)
            self.is_vectors.append(varies and floating)
        self._check()
        self.vocabulary_size = max([vocabulary_size or 0, *(int(ids.max()) + 1 for ids in self._of(self.is_tokens))])
        if any(self.is_tokens) and self.vocabulary_size < 2:
            raise ValueError(
                f"`vocabulary_size` must be at least 2, to replace tokens. Received: vocabulary_size={vocabulary_size}."
            )

    @property
    def varies(self) -> list[bool]:
        """Whether each array varies: token ids or vectors."""
        return [tokens or vectors for tokens, vectors in zip(self.is_tokens, self.is_vectors, strict=True)]

    @property
    def batch_and_length(self) -> tuple[int, int]:
        """First two axes, (B, T), of all varying arrays."""
        return self._of(self.varies)[0].shape[:2]

    def length_of(self, arrays: Sequence[np.ndarray]) -> int:
        """Return the number of positions of arrays in the same order, such as the result of `prefix`."""
        return arrays[self.varies.index(True)].shape[1]

    def pack(self, arrays: Sequence[Tensor]) -> Any:
        """Pack arrays or tensors, one per item of `self.arrays`, into the input structure of the target."""
        return keras.tree.pack_sequence_as(self.structure, arrays)

    @property
    def vectors(self) -> list[np.ndarray]:
        """The arrays that are vectors."""
        return self._of(self.is_vectors)

    def with_vectors(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return the arrays with `self.vectors` replaced by `vectors`, arrays or tensors."""
        new = iter(vectors)
        return [next(new) if take else array for array, take in zip(self.arrays, self.is_vectors, strict=True)]

    def replace_from(self, cut: int, rng: np.random.Generator, repeat: bool = False) -> list[np.ndarray]:
        """Return the arrays with other random tokens and vectors at positions >= `cut`.

        With `repeat`, all replaced positions of a row get the same token, which overfills any selection of a fixed
        size. Otherwise, each position has a separate random token.
        """
        arrays = []
        for array, is_tokens, varies in zip(self.arrays, self.is_tokens, self.varies, strict=True):
            if varies:
                array = array.copy()
                suffix = array[:, cut:]
                suffix[:] = self._draw(suffix[:, :1] if repeat else suffix, is_tokens, rng)
            arrays.append(array)
        return arrays

    def join(self, arrays: Sequence[np.ndarray], cut: int) -> list[np.ndarray]:
        """Return the arrays of `self` before position `cut`, joined with `arrays` from `cut` on."""
        return [
            np.concatenate([old[:, :cut], new[:, cut:]], axis=1) if take else old
            for old, new, take in zip(self.arrays, arrays, self.varies, strict=True)
        ]

    def prefix(self, length: int) -> list[np.ndarray]:
        """Return the arrays truncated to `length` positions; pairwise masks (B, T, T) on both axes."""
        rows, whole = self.batch_and_length
        prefixes = []
        for array, varies in zip(self.arrays, self.varies, strict=True):
            if varies:
                array = array[:, :length]
            elif array.ndim > 1 and array.shape[0] in (1, rows):
                array = array[(slice(None), *(slice(length if size == whole else None) for size in array.shape[1:]))]
            prefixes.append(array)
        return prefixes

    def _draw(self, old, is_tokens, rng):
        if not is_tokens:
            return rng.standard_normal(old.shape)
        # Id 0, often padding, is excluded if the vocabulary has more than two ids. A random shift between 1 and
        # `count` - 1, modulo `count`, changes every token.
        lowest = int(self.vocabulary_size > 2)
        count = self.vocabulary_size - lowest
        return lowest + (old - lowest + rng.integers(1, count, old.shape)) % count

    def _of(self, chosen):
        return [array for array, take in zip(self.arrays, chosen, strict=True) if take]

    def _check(self):
        tokens, vectors = self._of(self.is_tokens), self._of(self.is_vectors)
        shapes = [array.shape for array in (*tokens, *vectors)]
        if any(ids.ndim != 2 for ids in tokens) or any(vector.ndim < 3 for vector in vectors) or not shapes:
            raise ValueError(
                "`inputs` must have token ids (batch_size, sequence_length) of an integer dtype, or vectors "
                "(batch_size, sequence_length, hidden_dim) of a floating-point dtype. "
                f"Received: shapes {[array.shape for array in self.arrays]}, "
                f"dtypes {[str(array.dtype) for array in self.arrays]}."
            )
        if len({shape[:2] for shape in shapes}) > 1 or shapes[0][1] < 2:
            raise ValueError(
                "`inputs` must have equal batch sizes and equal sequence lengths of at least 2. To keep one of several "
                f"inputs constant, pass a function of the other inputs as `target`. Received: shapes {shapes}."
            )


def make_inputs(
    target: Any,
    layers: Sequence[keras.Layer],
    shape: tuple[int, int, int],
    vocabulary_size: int | None,
    rng: np.random.Generator,
) -> AuditInputs:
    """Draw random inputs for `target`.

    Args:
        target: layer, model or function.
        layers: the Keras layers in `target`.
        shape: (batch size, sequence length, hidden dimension), for sizes that `target` does not determine.
        vocabulary_size: number of token ids. None: see `find_vocabulary_size`.
        rng: NumPy generator.

    Returns:
        `AuditInputs`.
    """
    vocabulary_size = vocabulary_size or find_vocabulary_size(target, layers)
    specs = _input_specs(target, bool(vocabulary_size), shape[2])

    def draw(spec):
        sizes = [size if known is None else known for known, size in zip(spec.shape, shape, strict=False)]
        sizes += [shape[2] if known is None else known for known in spec.shape[3:]]
        fixed = _is_fixed(spec.name)
        if fixed:
            return _FIXED[fixed](sizes)
        if len(sizes) == 2 and (vocabulary_size or keras.backend.is_int_dtype(spec.dtype)):
            if not vocabulary_size:
                raise ValueError(
                    "`vocabulary_size` must be given for a target without Embedding layers. "
                    f"Received: vocabulary_size={vocabulary_size}."
                )
            return rng.integers(int(vocabulary_size > 2), vocabulary_size, sizes, dtype="int32")
        return rng.standard_normal(sizes, dtype="float32")

    names = [spec.name for spec in keras.tree.flatten(specs)]
    return AuditInputs(keras.tree.map_structure(draw, specs), vocabulary_size, names)


def find_vocabulary_size(target: Any, layers: Sequence[keras.Layer]) -> int | None:
    """Return the target's `vocabulary_size`, or else the `input_dim` of its smallest Embedding layer, or None."""
    own = getattr(target, "vocabulary_size", None)
    tables = [layer.input_dim for layer in layers if isinstance(layer, keras.layers.Embedding)]
    return own or min(tables, default=None)


def has_fixed_length(target: Any) -> bool:
    """Return whether `target` has symbolic inputs with a fixed sequence length."""
    if not isinstance(target, keras.Model) or not getattr(target, "inputs", None):
        return False
    return any(len(spec.shape) > 1 and spec.shape[1] is not None for spec in target.inputs)


def _is_fixed(name):
    return next((word for word in _FIXED if word in name), None)


def _input_specs(target, has_vocabulary, hidden_dim):
    """Return inputs of `target` as Keras tensors: from its symbolic inputs, its build config, or a guess."""
    if isinstance(target, keras.Model) and getattr(target, "inputs", None):
        return target.inputs[0] if isinstance(target, keras.Sequential) else target.input
    if isinstance(target, keras.Layer) and target.built:
        built = target.get_build_config() or {}
        first = built.get("input_shape") or next(iter(built.get("shapes_dict", {}).values()), None)
        if first and all(size is None or isinstance(size, int) for size in first):
            # Later calls may have another batch size and length.
            has_vocabulary = has_vocabulary and len(first) == 2
            hidden_dim = first[-1]
    if has_vocabulary:
        return keras.KerasTensor((None, None), "int32", name="inputs")
    return keras.KerasTensor((None, None, hidden_dim), "float32", name="inputs")
