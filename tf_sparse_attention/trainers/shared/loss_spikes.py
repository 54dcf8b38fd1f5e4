"""Loss spikes: steps whose loss is far above those before."""

import collections
import math
import statistics

WINDOW, LEAST = 100, 20  # losses that a new one is compared with: at most, and at least
NUM_DEVIATIONS = 6.0
LEAST_DEVIATION = 0.01  # of the median, where losses hardly differ


class LossSpikes:
    """Counts spikes in the losses of a training. Keras reports only the running mean of these losses.

    A spike is a loss that is more than six deviations above the median of the 100 before, where a deviation is 1.4826
    times the median distance from the median, the standard deviation of normal losses. The first 20 losses of a process
    are only compared with.
    """

    def __init__(self) -> None:
        self._recent: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._mean, self._count = 0.0, 0
        self._begin()

    def _begin(self):
        self._largest, self._spikes = -math.inf, 0

    def add(self, mean: float) -> None:
        """Takes the mean of all losses since `forget`; of steps in one execution the loss is their mean."""
        # Of batches that count by their tokens this is off the mean in proportion to them: a large batch counts more.
        loss = mean + self._count * (mean - self._mean)
        self._mean, self._count = mean, self._count + 1
        if not math.isfinite(mean):
            self.forget()
            return
        self._spikes += self._is_spike(loss)
        self._largest = max(self._largest, loss)
        self._recent.append(loss)

    def _is_spike(self, loss):
        if len(self._recent) < LEAST:
            return False
        median = statistics.median(self._recent)
        deviation = 1.4826 * statistics.median(abs(other - median) for other in self._recent)
        return loss > median + NUM_DEVIATIONS * max(deviation, LEAST_DEVIATION * abs(median))

    def forget(self) -> None:
        """Resets the mean, as Keras does."""
        self._mean, self._count = 0.0, 0

    def take(self) -> dict[str, float]:
        """Returns "loss_peak", the largest loss since the last call, and "loss_spikes", their number since then."""
        scalars: dict[str, float] = {"loss_peak": self._largest} if self._largest > -math.inf else {}
        scalars["loss_spikes"] = self._spikes
        self._begin()
        return scalars
