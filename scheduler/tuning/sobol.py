"""Points of a scrambled Sobol sequence, by number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from trainmaster.studies import Space


def sobol_points(space: Space, seed: int, index: int) -> Iterator[dict[str, Any]]:
    """The points from number ``index`` on. The caller skips points that break constraints.

    A skipped point shifts the following ones: two requests with different numbers may get the same point, which the
    list of pending points keeps apart.
    """
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # for counts that are no power of two
        source = qmc.Sobol(len(space.parameters), scramble=True, rng=seed)
        if index:
            source.fast_forward(index)
        while True:
            yield space.from_unit([min(float(place), 1 - 1e-12) for place in source.random(1)[0]])
