"""The devices of a run: what all kinds of them offer, and the answers of one device."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
from absl import logging


class OneDevice:
    """The default device of the backend.

    Attributes:
        num_replicas: copies of the model, each with its part of every batch.
        can_run_alone: whether this process can run the model by itself, outside of training.
        num_processes: processes of the run, each with some of the replicas.
        process_index: which of them this is.
        chief_host: name or address of the machine of process 0, which that one has to know.
    """

    num_replicas = 1
    can_run_alone = True
    num_processes = 1
    process_index = 0
    chief_host = "localhost"

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.process_index == 0

    @property
    def is_single_process(self) -> bool:
        """Whether the run has no other processes."""
        return self.num_processes == 1

    def scope(self) -> Any:
        """Context in which models are made, trained and evaluated."""
        return contextlib.nullcontext()

    def dataset(self, batches: Any, start: int, stop: int) -> Any:
        """Return the data set that `fit` and `predict` take in this process.

        Args:
            batches: `tsa.data.Batches`.
            start, stop: number of the first batch and number after the last.
        """
        if keras.backend.backend() == "jax":  # TensorFlow divides whole batches among processes
            batches = batches.shard(self.process_index, self.num_processes)
        return batches.dataset(start, stop)

    def execution(self, jit_compile: bool | None, steps_per_execution: int) -> dict[str, Any]:
        """Returns the arguments of `keras.Model.compile` about execution.

        Args:
            jit_compile: whether to compile with XLA; None: True on one device, False with several TensorFlow
                replicas.
            steps_per_execution: steps in one call of the compiled function.
        """
        # Keras itself leaves XLA to GPUs; on a CPU a step is no slower with it.
        jit_compile = True if jit_compile is None else jit_compile
        return {"jit_compile": jit_compile, "steps_per_execution": steps_per_execution}

    def check_accumulation(self, num_steps: int | None) -> None:
        """Raise a `ValueError` if gradients cannot be accumulated over `num_steps` steps. None: they are not."""

    def from_chief(self, values: Sequence[int]) -> list[int]:
        """Returns the values, integers from 0 to 255, that process 0 has, to all processes, which call this together.

        Args:
            values: those of this process; of other processes than 0 only their number counts.
        """
        return list(values)

    def compare_replicas(self, before: int | None) -> None:
        """Says what may differ where a run goes on with another number of replicas.

        Args:
            before: the number that a checkpoint was saved with. None: it does not say.
        """
        if before not in (None, self.num_replicas):
            # Arrays of JAX are those of all devices, and so is what is drawn for them.
            draws = "" if keras.backend.backend() == "jax" else ", and each replica draws its own dropout"
            logging.warning(
                "The checkpoint is one of %d replicas, and this run has %d: batches and mean losses stay the same. "
                "Sums are added up in another order%s, so that the weights differ from those of %d.",
                *(before, self.num_replicas, draws, before),
            )

    def split_model(self, num_parts: int) -> None:
        """Divides each replica of the model among `num_parts` devices, see `tsa.distribution`."""
        raise ValueError(
            "`config.train.model_parallel` must be 1, unless JAX (KERAS_BACKEND=jax) has several devices. "
            f"Received: model_parallel={num_parts}, {keras.backend.backend()} with {self.num_replicas} replicas."
        )
