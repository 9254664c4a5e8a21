"""Published numbers that the surrogate is fitted to, and nothing else.

Sources: the public code of EXARL (github.com/exalearn/EXARL, `ExaBooster`) and of fermilab-accelerator-ai/
control-for-accelerators-in-hep with its committed scaler statistics, plots and rendered frames; St. John et al., "Real-time artificial
intelligence for accelerator control: A study at the Fermilab Booster", Phys. Rev. Accel. Beams 24, 104601 (2021).
"""

from typing import NamedTuple


class Range(NamedTuple):
    """Statistics of a recorded signal."""

    low: float
    high: float
    median: float
    quartiles: float
    """Interquartile range."""


SIGNALS = {
    "VIMIN": Range(103.24697, 103.98612, 103.39773, 0.02934),
    "IMINER": Range(-1.21031, 1.17969, -0.0003, 0.26),
    "LINFRQ": Range(-44.10, 37.33, 7.43, 18.83),
    "IB": Range(345.9, 7059.7, 2975.9, 4940.0),
    "MDAT40": Range(369.4, 7033.4, 2907.4, 4983.8),
}
"""In the order of observations."""
SETTING = 103.395
"""VIMIN that the recorded regulator holds at IMINER = 0."""
GAIN = 0.0908
"""Gain of the recorded regulator: VIMIN[t + 1] = SETTING - GAIN IMINER[t]."""
ALPHA, GAMMA = 0.1, 7.535e-5
"""Gains of the regulator in the published code."""
CHANGES = (-0.0178, -0.0108, -0.0039, -0.0002, 0.0042, 0.0087, 0.0165)
"""Quantiles of the changes of VIMIN from one sample to the next, equally spaced from 1/31 to 30/31."""
AUTOCORRELATION = {1: 0.84, 2: 0.56, 3: 0.22, 4: -0.04, 5: -0.16, 10: 0.39}
"""Lag -> autocorrelation of the recorded IMINER, from 213 samples."""
CYCLE = 901
"""Samples of a super-cycle, 60.066 s."""
RATE = 15.0
"""Samples per second."""
