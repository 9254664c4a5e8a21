"""Lines that a run shows its user once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

MUCH_CLIPPED = 0.01
"""Share of clipped observations above which a run says so."""
LONG_ITERATION_S = 10.0
"""An iteration that takes longer than this is announced."""


class Notes:
    """Shows each note once, also if the run is resumed: `told` holds the topics that were shown before."""

    def __init__(self, message: Callable[[str], None], told: Iterable[str]) -> None:
        self._message = message
        self.told = list(told)

    def once(self, topic: str, text: str) -> None:
        """Show `text` unless there was a note on `topic`."""
        if topic not in self.told:
            self.told.append(topic)
            self._message(text)

    def on_lost(self, lost: Iterable[str]) -> None:
        """Name processes that the run goes on without, each with the reason."""
        for each in lost:
            self.once(each, f"the run goes on without {each}")

    def on_duration(self, iteration_s: float) -> None:
        """Say that iterations are long: the run reacts to nothing during one."""
        if iteration_s > LONG_ITERATION_S:
            self.once(
                "long iteration",
                f"an iteration takes {iteration_s:.0f} s: limits, evaluations, checkpoints and Ctrl-C wait for its end;"
                " a smaller n_envs or agent.horizon makes it shorter",
            )

    def on_clipping(self, values: Mapping[str, float]) -> None:
        """Say that many observations are clipped."""
        clipped = [name for name, value in values.items() if name.endswith("clipped_share") and value > MUCH_CLIPPED]
        if clipped:
            share = f"{values[clipped[0]]:.1%} of the observed numbers are clipped at 10 standard deviations"
            self.once("clipping", f"{clipped[0]}: {share}; scale them in `observe` or set agent.normalize_obs=false")
