"""What tasks and programs hand to each other: data to train on, what to show, and samples."""

from typing import Any, NamedTuple


class TrainingData(NamedTuple):
    """The data of a run.

    Attributes:
        source: has a `name`, for work folders.
        fingerprint: a string that identifies it.
        batches: `tsa.data.Batches`.
        tokens_per_step: for the log.
    """

    source: Any
    fingerprint: str
    batches: Any
    tokens_per_step: int


class Shown(NamedTuple):
    """What a task shows of its model after an evaluation, beside its scores.

    Attributes:
        scalars: numbers by name.
        texts: texts by name.
        pictures: uint8 arrays (height, width, 3 or 4) by name.
        sounds: pairs of samples, int16 (T,), and samples a second by name. Default: none.
    """

    scalars: dict[str, float]
    texts: dict[str, str]
    pictures: dict[str, Any]
    sounds: dict[str, Any] = {}  # noqa: RUF012  # never changed


class Request(NamedTuple):
    """What a task is asked to generate; None stands for what the configuration of the run says.

    Attributes:
        prompt: `bytes`, the text to continue or to translate, or the WAV file to continue.
        complete: name of a split, the images of which are completed.
        num_samples: number of samples.
        length: maximum number of tokens to add.
        seed: of the first sample; sample i has `seed` + i.
        path: the file to write.
        settings: of `tf_sparse_attention.generation.Sampling`, or `BeamSearch` with "num_beams".
    """

    prompt: bytes | None = None
    complete: str | None = None
    num_samples: int = 1
    length: int | None = None
    seed: int = 0
    path: Any = None
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed


class Generated(NamedTuple):
    """What a task generated.

    Attributes:
        samples: dictionaries, each with "num_tokens", "seed" and "interrupted".
        text: what to print of them, without what was shown while it was generated.
        path: the file that was written, or None.
    """

    samples: list[dict[str, Any]]
    text: str
    path: Any
