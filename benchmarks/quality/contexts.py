"""Which tokens complete something that was said before, and how far back."""

import numpy as np

NONE, NEAR, FAR = 0, 1, 2
NAMES = {NONE: "new", NEAR: "near", FAR: "far"}


def categories(inputs: np.ndarray, documents: np.ndarray, reach: int) -> np.ndarray:
    """Returns for each token that is to be predicted where the two tokens before it last stood side by side.

    Long-range context is worth most where the same was said before: Sun et al. 2021, "Do long-range language models
    actually use long-range context?"; Arora et al. 2023, "Zoology".

    Args:
        inputs: int (B, T), the token before each target.
        documents: int (B, T), the document of each; pairs of other documents do not count.
        reach: positions that local windows look back, all layers together.

    Returns:
        Int (B, T): `NEAR` where they did within the reach, `FAR` where they did only before it, else `NONE`.
    """
    found = np.full(inputs.shape, NONE)
    for row, (ids, own) in enumerate(zip(inputs.tolist(), documents.tolist(), strict=True)):
        last: dict[tuple[int, int, int], int] = {}
        for at in range(1, len(ids)):
            if own[at - 1] != own[at]:
                continue
            context = own[at], ids[at - 1], ids[at]
            if context in last:
                found[row, at] = NEAR if at - last[context] <= reach else FAR
            last[context] = at
    return found
