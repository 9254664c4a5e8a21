"""The returns of many jobs in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from warprun.runs.summary import iqm


class Returns(NamedTuple):
    """How the returns of jobs are spread."""

    best: float
    upper: float
    """Upper quartile."""
    median: float
    lower: float
    """Lower quartile."""
    iqm: float
    """Interquartile mean."""

    @classmethod
    def of(cls, returns: Sequence[float]) -> Returns:
        """Return the spread of one return or more."""
        found = np.array(returns)
        lower, median, upper = np.percentile(found, (25, 50, 75))
        return cls(float(found.max()), float(upper), float(median), float(lower), float(iqm(found)))

    def describe(self) -> str:
        """Return the spread in one line."""
        return f"best {self.best:.4g}, IQM {self.iqm:.4g}, median {self.median:.4g}, middle half {self.lower:.4g} to {self.upper:.4g}"
