"""The configs of all environments, as `warprun envs` lists them.

Plain files are read without Hydra, whose import and compositions take longer than all the rest.
"""

from __future__ import annotations

from functools import cache

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.config.own_files import read_yaml
from warprun.config.reading import texts
from warprun.config.registry import files_of
from warprun.config.schema import EnvConfig
from warprun.errors import typed


def environment_config(name: str) -> EnvConfig:
    """Return the config of an environment. Its keys are checked, its values are not. Raises UserError."""
    found = _read(name)
    if found is None:
        from warprun.config.compose import compose_environment  # imports Hydra

        found = compose_environment(name)
    return found


@cache
def _schema() -> DictConfig:
    return OmegaConf.structured(EnvConfig)


def _read(name: str) -> EnvConfig | None:
    """Return the config of a file that holds nothing but keys of an environment; None for others and for mistakes, which Hydra explains."""
    files = files_of("env", name)
    if not files:
        return None
    text, content = read_yaml(files[0], typed(files[0]), "env")
    refers = any("${" in value for _, value in texts(OmegaConf.to_container(content, resolve=False)))
    if "defaults" in content or "@package" in text or refers:
        return None
    try:
        config = OmegaConf.to_object(OmegaConf.merge(_schema(), content))
    except (OmegaConfBaseException, ValueError):
        return None
    assert isinstance(config, EnvConfig)
    return config
