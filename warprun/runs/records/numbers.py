"""Numbers and times as text for readers."""

from __future__ import annotations

import math


def prefix(value: float) -> tuple[float, str]:
    """Return the factor in which three digits of a count or a rate are written, and its SI prefix: (1e6, " M")."""
    # 999.5 k and above rounds to 1.00 M.
    found = ((factor, name) for factor, name in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")) if abs(value) >= 0.9995 * factor)
    return next(found, (1.0, ""))


def si(value: float) -> str:
    """Write a count or a rate with three digits and an SI prefix: 1.23 M."""
    if not math.isfinite(value):
        return str(value)
    factor, name = prefix(value)
    if not name:
        return f"{value:.0f}" if abs(value) >= 99.95 or value == int(value) else f"{value:.3g}"
    scaled = value / factor
    return f"{scaled:.{2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0}f}{name}"


def number(value: float) -> str:
    """Write any quantity with four digits: 195.0, 0.01235, 15,234, 2.50 M."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 999_500:
        return si(value)
    if isinstance(value, int) or abs(value) >= 999.95:
        return f"{value:,.0f}"
    # '#' keeps the zeros at the end, so that a number that changes does not change its width.
    return f"{value:#.4g}" if value else "0.000"


def duration(seconds: float) -> str:
    """Write a time as 12 s, 3:07 or 2:03:07 (hours); days come in front: 1 d 2:03:07."""
    if not math.isfinite(seconds):
        return str(seconds)
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h}:{m:02}:{s:02}"
    if h:
        return f"{h}:{m:02}:{s:02}"
    return f"{m}:{s:02}" if m else f"{s} s"
