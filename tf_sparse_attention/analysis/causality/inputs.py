"""The inputs of the causality audit, drawn or given, and the same with later positions replaced."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_sparse_attention.types import Tensor

# Inputs of these names say something about positions and carry no content: the audit never replaces them.
_FIXED = {
    "mask": lambda shape: np.ones(shape, "int32"),
    "segment": lambda shape: np.zeros(shape, "int32"),
    "position": lambda shape: np.broadcast_to(np.arange(shape[1], dtype="int32"), shape),
}


class AuditInputs:
    """Arrays in the structure that the target takes, and which of them vary.

    Integer arrays (B, T) are token ids, floating-point arrays (B, T, D, ...) are vectors; both vary. Boolean arrays
    and those whose name contains "mask", "segment" or "position" are fixed.

    Args:
        structure: an array, or a list or dictionary of arrays.
        vocabulary_size: number of token ids, or None: one more than the largest id in `structure`.
        names: names of the arrays in the order of `keras.tree.flatten`, or None: their keys in `structure`.
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
                "`vocabulary_size` must be at least 2, so that a token can be replaced. "
                f"Received: vocabulary_size={vocabulary_size}."
            )

    @property
    def varies(self) -> list[bool]:
        """Which arrays are token ids or vectors."""
        return [tokens or vectors for tokens, vectors in zip(self.is_tokens, self.is_vectors, strict=True)]

    @property
    def batch_and_length(self) -> tuple[int, int]:
        """Shape (B, T) that all varying inputs share."""
        return self._of(self.varies)[0].shape[:2]

    def length_of(self, arrays: Sequence[np.ndarray]) -> int:
        """Return the positions of arrays that stand for these, as those of `prefix` do."""
        return arrays[self.varies.index(True)].shape[1]

    def pack(self, arrays: Sequence[Tensor]) -> Any:
        """Puts arrays or tensors, one for each of `self.arrays`, into the structure the target takes."""
        return keras.tree.pack_sequence_as(self.structure, arrays)

    @property
    def vectors(self) -> list[np.ndarray]:
        """The arrays that are vectors."""
        return self._of(self.is_vectors)

    def with_vectors(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return the arrays with `vectors`, arrays or tensors, in place of `self.vectors`."""
        new = iter(vectors)
        return [next(new) if take else array for array, take in zip(self.arrays, self.is_vectors, strict=True)]

    def replace_from(self, cut: int, rng: np.random.Generator, repeat: bool = False) -> list[np.ndarray]:
        """Return the arrays with other tokens and vectors at positions >= `cut`.

        `repeat` draws one token for the whole suffix, which crowds any selection of a fixed size; otherwise every
        position draws its own.
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
        """Return the arrays with their own positions before `cut` and those of `arrays` from it on."""
        return [
            np.concatenate([old[:, :cut], new[:, cut:]], axis=1) if take else old
            for old, new, take in zip(self.arrays, arrays, self.varies, strict=True)
        ]

    def prefix(self, length: int) -> list[np.ndarray]:
        """Return the arrays cut off after `length` positions; masks of pairs (B, T, T) on both axes."""
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
        # Id 0 is padding in many models and stays out where the vocabulary can spare it. Going on by less than a full
        # round changes every token.
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
                "`inputs` must hold token ids (batch_size, sequence_length) of an integer dtype or vectors "
                "(batch_size, sequence_length, hidden_dim) of a floating-point one. "
                f"Received: shapes {[array.shape for array in self.arrays]}, "
                f"dtypes {[str(array.dtype) for array in self.arrays]}."
            )
        if len({shape[:2] for shape in shapes}) > 1 or shapes[0][1] < 2:
            raise ValueError(
                "`inputs` must share batch size and sequence length, of at least 2 positions. To hold one of several "
                f"inputs, pass a function of the others as `target`. Received: shapes {shapes}."
            )


def make_inputs(
    target: Any,
    layers: Sequence[keras.Layer],
    shape: tuple[int, int, int],
    vocabulary_size: int | None,
    rng: np.random.Generator,
) -> AuditInputs:
    """Draw inputs that `target` can take.

    Args:
        target: layer, model or function.
        layers: the Keras layers in it.
        shape: (batch size, sequence length, hidden dimension), used where `target` leaves them open.
        vocabulary_size: number of token ids, or None: the smallest table of the Embedding layers.
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
                    "`vocabulary_size` must be given where no Embedding layer has it. "
                    f"Received: vocabulary_size={vocabulary_size}."
                )
            return rng.integers(int(vocabulary_size > 2), vocabulary_size, sizes, dtype="int32")
        return rng.standard_normal(sizes, dtype="float32")

    names = [spec.name for spec in keras.tree.flatten(specs)]
    return AuditInputs(keras.tree.map_structure(draw, specs), vocabulary_size, names)


def find_vocabulary_size(target: Any, layers: Sequence[keras.Layer]) -> int | None:
    """Return how many token ids `target` knows for sure, or None: its own figure, or its smallest embedding table."""
    own = getattr(target, "vocabulary_size", None)
    tables = [layer.input_dim for layer in layers if isinstance(layer, keras.layers.Embedding)]
    return own or min(tables, default=None)


def has_fixed_length(target: Any) -> bool:
    """Return whether the inputs that `target` declares have one sequence length."""
    if not isinstance(target, keras.Model) or not getattr(target, "inputs", None):
        return False
    return any(len(spec.shape) > 1 and spec.shape[1] is not None for spec in target.inputs)


def _is_fixed(name):
    return next((word for word in _FIXED if word in name), None)


def _input_specs(target, has_vocabulary, hidden_dim):
    """What `target` takes, as Keras tensors: from its own inputs, from how it was built, or guessed."""
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
