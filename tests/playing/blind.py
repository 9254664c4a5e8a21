"""An environment with the interface of Gymnasium that cannot be rendered."""

from typing import Any

from tests.playing import screen


class environment:
    observation_space, action_space = screen.environment.observation_space, screen.environment.action_space

    def __init__(self, render_mode: str | None = None) -> None:
        self.inner = screen.environment()

    def reset(self, seed: int | None = None) -> Any:
        return self.inner.reset(seed)

    def step(self, action: int) -> Any:
        return self.inner.step(action)
