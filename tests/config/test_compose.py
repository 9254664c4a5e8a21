"""Composing in programs that have several threads, or a Hydra of their own."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from warprun.config.compose import compose
from warprun.config.schema import to_dict
from warprun.sweeps.launch import compose_launch

GIVEN = ["env=pendulum", "agent=sac", "n_envs=2"]


def test_two_threads_compose_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread comes while Hydra composes for the first one, and waits."""
    alone = to_dict(compose(GIVEN))
    second = ThreadPoolExecutor(1)
    made: list[Future[object]] = []

    def composed(*arguments, in_full=hydra.compose, **options):
        if not made:
            made.append(second.submit(lambda: to_dict(compose(GIVEN))))
            wait(made, timeout=0.2)
        return in_full(*arguments, **options)

    monkeypatch.setattr(hydra, "compose", composed)
    with second:
        first = compose(["env=cartpole", "agent=dqn"])
        assert made[0].result() == alone
    assert first.agent.name == "dqn"


def test_a_program_of_hydra_composes_and_keeps_its_own() -> None:
    alone = to_dict(compose(GIVEN))
    with hydra.initialize_config_module("warprun.conf", version_base=None):
        own = GlobalHydra.instance().hydra
        assert to_dict(compose(GIVEN)) == alone
        assert compose_launch(["launcher.workers=2"]).launcher.name == "local"
        assert GlobalHydra.instance().hydra is own
    assert not GlobalHydra.instance().is_initialized()
