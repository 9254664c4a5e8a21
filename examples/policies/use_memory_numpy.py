"""Compute the output of a policy with memory from `policy.npz` in NumPy: the program of docs/policies.md."""

import math

import numpy as np

p = np.load("policy.npz")
activations = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "linear": lambda x: x,
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(obs, carry):
    x = np.clip((obs - p["obs_shift"]) * p["obs_scale"], -p["obs_clip"], p["obs_clip"])
    if np.isfinite(p["sequence"]):  # the last number counts the steps
        carry = np.where(carry[:, -1:] >= p["sequence"], 0, carry)
    at, after = 0, []
    last = sum(name.startswith("weight_") for name in p) - 1
    for n in range(last + 1):
        own = x @ p[f"weight_{n}"].T + p[f"bias_{n}"]
        if f"state_weight_{n}" not in p:
            activate = activations[str(p["activation" if n < last else "output_activation"])]
            x = activate(own)
            continue
        units = p[f"state_weight_{n}"].shape[1]
        h = carry[:, at : at + units]
        past = h @ p[f"state_weight_{n}"].T + p[f"state_bias_{n}"]
        if len(p[f"bias_{n}"]) == 4 * units:  # LSTM
            i, f, g, o = np.split(own + past, 4, -1)
            c = sigmoid(f) * carry[:, at + units : at + 2 * units] + sigmoid(i) * np.tanh(g)
            x = sigmoid(o) * np.tanh(c)
            after += [x, c]
        else:  # GRU
            (r, z, g), (r_past, z_past, g_past) = np.split(own, 3, -1), np.split(past, 3, -1)
            z = sigmoid(z + z_past)
            x = (1 - z) * np.tanh(g + sigmoid(r + r_past) * g_past) + z * h
            after.append(x)
        at = sum(part.shape[1] for part in after)
    if np.isfinite(p["sequence"]):
        after.append(carry[:, -1:] + 1)
    return x, np.concatenate(after, -1)


print(step(np.zeros((5, p["obs_shift"].size)), np.zeros((5, p["carry"].size)))[0])
