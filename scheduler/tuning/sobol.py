"""Points of a scrambled Sobol sequence, by their number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from trainmaster.studies import Space


def sobol_points(space: Space, seed: int, index: int) -> Iterator[dict[str, Any]]:
    """The points from number ``index`` on; each satisfies the constraints or is passed over by whoever asks.

    Whatever is passed over shifts what follows: two askers of different numbers may get the same point, which the list of
    pending ones keeps apart.
    """
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a power of two would be more even
        source = qmc.Sobol(len(space.parameters), scramble=True, rng=seed)
        if index:
            source.fast_forward(index)
        while True:
            yield space.from_unit([min(float(place), 1 - 1e-12) for place in source.random(1)[0]])
