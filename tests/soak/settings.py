"""How long the long-running tests run: short in ``make test``, long in ``make soak``.

``MAE_SOAK=10`` makes them ten times as long, ``MAE_SOAK_SEED=7`` gives them other random numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("MAE_SOAK", "1"))
SEED = int(os.environ.get("MAE_SOAK_SEED", "0"))


def examples(count: int) -> Callable[..., object]:
    """Return a decorator that gives a property `count` examples, times `FACTOR`."""
    return settings(
        max_examples=count * FACTOR, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
