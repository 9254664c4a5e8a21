"""The host path on a stand-in for the CUDA driver: Numba itself compiles, links, loads, caches, marshals and launches.

    python -m tests.ptx.hosted FILE.json CASE... [-- TRAINING...]

writes what is wrong, by case. Torch stays on the CPU: its tensors say where they lie as CUDA tensors do, and its
current stream is a number.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from cuda.core import ObjectCode
from numba import cuda
from numba.cuda.cudadrv import driver as numba_driver

from tests.kernels import graphs
from tests.ptx.build import HERE, MACHINE, digest, folder, library, translated, write
from tests.ptx.project import DEVICE
from tests.ptx.rolling import FUSED_TOLERANCE, TANH, difference, fused, stepwise
from tests.simulation.rollouts import CASES, CPU
from warprun.kernels.driver import available_memory
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation import cuda_launch

STREAM = 0x5EA
WIDE = NetworkConfig(hidden=[600])
"""A network whose block has more shared memory than every kernel may ask for."""
TYPES = {torch.float32: "<f4", torch.float64: "<f8", torch.int32: "<i4", torch.int64: "<i8", torch.bool: "|b1", torch.uint8: "|u1"}


class OnDevice:
    """A tensor of the CPU that shows itself as CUDA tensors do."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor  # Numba keeps what it got, and with it the memory
        strides = None if tensor.is_contiguous() else tuple(s * tensor.element_size() for s in tensor.stride())
        data = (tensor.data_ptr() if tensor.numel() else 0, False)
        shown = {"typestr": TYPES[tensor.dtype], "shape": tuple(tensor.shape), "strides": strides, "data": data, "version": 2}
        self.__cuda_array_interface__ = shown


class Driver:
    """The stand-in; while it exists, engines of `DEVICE` find a GPU."""

    def __init__(self) -> None:
        sources = [HERE / "driver.c", *MACHINE]
        # Who asks for libcuda.so.1 from now on gets this one, which has that name.
        path = library("libcuda", sources, "-O2", "-Wl,-soname,libcuda.so.1")
        self.loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        numba_driver.driver.__init__()  # looks for a driver again
        self.loaded.driver_replay.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self.loaded.driver_stream_of.argtypes = [ctypes.c_uint64]
        self.loaded.driver_stream_of.restype = ctypes.c_uint64
        self._on_load = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(self._load)
        self.loaded.driver_on_load(self._on_load)
        as_cuda_array = cuda.as_cuda_array
        # Only the module that wraps tensors sees this; Numba's own function stays.
        cuda_launch.cuda = SimpleNamespace(
            as_cuda_array=lambda tensor, sync: as_cuda_array(OnDevice(tensor), sync=sync), external_stream=cuda.external_stream
        )
        torch.cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=STREAM)
        torch.cuda.mem_get_info = lambda device=None: (available_memory(), available_memory())
        # What nvJitLink would assemble: this driver takes PTX.
        numba_driver._Linker.complete = lambda linker: ObjectCode.from_cubin(linker.get_linked_ptx())

    def _load(self, image: bytes, made: int) -> int:
        text = image.decode()
        ptx = folder() / f"hosted-{digest(text)}.ptx"
        write(ptx, text)
        kernel = translated(ptx, "hosted")
        sizes = (ctypes.c_uint32 * len(kernel.parameters))(*kernel.parameters)
        add = self.loaded.driver_add
        add(ctypes.c_void_p(made), kernel.symbol.encode(), kernel.function, kernel.shared_bytes, len(kernel.parameters), sizes)
        return 0

    def number(self, name: str) -> int:
        return int(ctypes.c_uint64.in_dll(self.loaded, f"driver_{name}").value)

    def captured(self, work: Callable[[], None]) -> range:
        """Return the launches of `work`, which are kept and not run."""
        first = self.number("nodes")
        self.loaded.driver_capture(1)
        try:
            work()
        finally:
            self.loaded.driver_capture(0)
        return range(first, self.number("nodes"))

    def replay(self, launches: range) -> None:
        assert self.loaded.driver_replay(launches.start, launches.stop) == 0

    def wrong_about(self, launches: range) -> list[str]:
        streams = {self.loaded.driver_stream_of(n) for n in launches} - {STREAM}
        forbidden = self.number("forbidden")
        call = ctypes.c_char * 64
        name = call.in_dll(self.loaded, "driver_forbidden_call").value.decode()
        found = [f"launches on streams {streams}"] if streams else []
        return found + ([f"{forbidden} calls that a capture forbids, the last {name}"] if forbidden else [])


def rolled_out(name: str) -> list[str]:
    case = CASES[name]
    expected, found = (stepwise(case, name, {}, False, device, 37) for device in (CPU, DEVICE))
    wrong = difference(expected, found, case.tolerance)
    short = replace(case, horizon=4)
    for network in (TANH, WIDE) if name == "cartpole" else (TANH,):
        expected, found = (fused(short, name, network, False, {}, device, 37) for device in (CPU, DEVICE))
        wrong += difference(expected, found, max(FUSED_TOLERANCE, case.tolerance))
    return wrong


class DriverLaunches(graphs.Launches):
    """Stands for `Launches` of `graphs`: the driver keeps a launch with its arguments, and runs it then and later."""

    driver: Driver

    def __getattr__(self, kernel: str) -> Any:
        found = super().__getattr__(kernel)
        return DriverLaunch(found.kernel) if isinstance(found, graphs._Launches) else found


class DriverLaunch:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __getitem__(self, configuration: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            if not graphs.Record.current:
                self.kernel[configuration](*arguments)
                return
            driver = DriverLaunches.driver
            kept = driver.captured(lambda: self.kernel[configuration](*arguments))
            driver.replay(kept)
            graphs.Record.current.calls.append(lambda: driver.replay(kept))

        return launch


def trained(case: str, driver: Driver) -> list[str]:
    """Return what a training by replay leaves behind otherwise than the plain one."""
    DriverLaunches.driver = driver
    first = driver.number("nodes")
    plain, replayed = graphs.train(case, False), graphs.train(case, True)
    pairs = {key: (value, replayed[key.replace("/plain/", "/captured/")]) for key, value in plain.items()}
    wrong = [key for key, (value, other) in pairs.items() if value.tobytes() != other.tobytes()]
    return wrong + driver.wrong_about(range(first, driver.number("nodes")))


def main(file: str, *given: str) -> None:
    driver = Driver()
    at = given.index("--") if "--" in given else len(given)
    found = {name: rolled_out(name) for name in given[:at]}
    graphs.SIMULATOR, graphs.Launches = DEVICE, DriverLaunches  # type: ignore[assignment, misc]
    graphs.as_on_a_gpu()
    found |= {case: trained(case, driver) for case in given[at + 1 :]}
    found["launches"] = [str(driver.number("launches"))]
    Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
