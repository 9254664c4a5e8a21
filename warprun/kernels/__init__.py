"""Kernels: from Python functions to machine code for CPU and CUDA, and the calls of it.

The way of a function. `check` refuses what kernels cannot do, with the line of the user (`flow` follows its paths).
`compile` makes a Numba function of it and of all that it calls, with float32 in place of float, and loads modules of
kernels from source; `integers` does the same for targets that compile nothing. `fingerprint` hashes everything that
compiled code depends on, the keys of the cache; `bytecode` reads what a function refers to. `cache` has its files,
`kept` those of kernels and `pieces` those of the functions in them, so that a change compiles only what it touches,
and `ahead` lets another process fill both; `made` are functions that functions make, there as here. `waiting` tells a
person how long it takes. `thrift` leaves out what Numba does and kernels do not need. `compilers` says how Numba and
LLVM compile a kernel, with an entry point that takes one address.

The way of a loop over lanes to vectors: read `lanes`, then `lane_regions`, `lane_values`, `lane_cut`.

The way of a call. `bound` writes its arguments to memory once, `threads` splits its items, `repeat` makes recorded
calls again, as lists on CPU and as CUDA graphs on a GPU.

What kernels compute of an agent: `simd` (with `vectors`) the matrix products on CPU, `mlp` networks of them, `mlp_cuda` and
`mlp_cuda_backward` the same on CUDA in float32, `mlp_tensor` both on tensor cores (`warp` and `warp_values` have the
instructions, which `warp_writer` writes), `cells` the formulas of recurrent layers, `recurrent` these layers on CPU,
`rows` the linear ones around them, `memory` all layers of networks with memory there, `sampling` actions.
`moved` finds the arrays of another member on CUDA. `peak` measures the products, and `driver` says whether CUDA works.
"""
