"""Loss spikes: steps with a loss far above earlier losses."""

import collections
import math
import statistics

WINDOW, MIN_LOSSES = 100, 20  # maximum and minimum number of losses to compare with
NUM_DEVIATIONS = 6.0
MIN_DEVIATION = 0.01  # relative to the median, for nearly equal losses


class LossSpikes:
    """Count of spikes in the losses of a training. Keras only reports the running mean of the losses.

    A spike is a loss more than six deviations above the median of the previous 100 losses. The deviation is 1.4826 x
    median(|loss - median|), the standard deviation if losses are normally distributed. The first 20 losses of a process
    are never spikes.
    """

    def __init__(self) -> None:
        self._recent: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._mean, self._count = 0.0, 0
        self._begin()

    def _begin(self):
        self._largest, self._spikes = -math.inf, 0

    def add(self, mean: float) -> None:
        """Add a loss, given the mean of all losses since `reset_mean`. An execution of several steps is one loss."""
        # Exact for batches of equal weight. If tokens are the weights, large batches deviate more from the mean.
        loss = mean + self._count * (mean - self._mean)
        self._mean, self._count = mean, self._count + 1
        if not math.isfinite(mean):
            self.reset_mean()
            return
        self._spikes += self._is_spike(loss)
        self._largest = max(self._largest, loss)
        self._recent.append(loss)

    def _is_spike(self, loss):
        if len(self._recent) < MIN_LOSSES:
            return False
        median = statistics.median(self._recent)
        deviation = 1.4826 * statistics.median(abs(recent - median) for recent in self._recent)
        return loss > median + NUM_DEVIATIONS * max(deviation, MIN_DEVIATION * abs(median))

    def reset_mean(self) -> None:
        """Start a new mean. Call it when Keras resets its metrics."""
        self._mean, self._count = 0.0, 0

    def pop_scalars(self) -> dict[str, float]:
        """Return "loss_peak", the largest loss, and "loss_spikes", the number of spikes, since the last call."""
        scalars: dict[str, float] = {"loss_peak": self._largest} if self._largest > -math.inf else {}
        scalars["loss_spikes"] = self._spikes
        self._begin()
        return scalars
