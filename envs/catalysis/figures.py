"""The figures of a catalysis run: energy along the paths, and the paths over slices of the landscape. Needs matplotlib."""

import matplotlib
import numpy as np

from warprun.envs.catalysis.analysis import arc_length

matplotlib.use("agg")
from matplotlib import pyplot

STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
LINES = {
    "learned": {"color": "#d55e00", "marker": "o", "markersize": 3, "linewidth": 1.6, "zorder": 3},
    "highest return": {"color": "#0072b2", "linestyle": "--", "linewidth": 1.2},
    "lowest barrier": {"color": "#444444", "linestyle": ":", "linewidth": 1.4},
}
SLICES = 6


def draw(folder, made, paths):
    """Write `energy_profile.png` and `path_slices.png`."""
    with pyplot.rc_context(STYLE):
        for name, figure in {"energy_profile": profile(made, paths), "path_slices": slices(made, paths)}.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
            pyplot.close(figure)


def profile(made, paths):
    """Draw the energy above the start against the arc length, with the highest point of each path."""
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, path in paths.items():
        lengths, top = arc_length(made, path), int(path.energies.argmax())
        axes.plot(lengths, path.energies, label=f"{name}: {path.steps} steps, highest {path.barrier:.3f}", **LINES[name])
        axes.plot(lengths[top], path.energies[top], "^", color=LINES[name]["color"], markersize=7)
    axes.set(xlabel="arc length / cells", ylabel="energy above the start")
    axes.legend(fontsize=8)
    return figure


def slices(made, paths):
    """Draw the layers of z that the learned path visits (some of them, where they are many), and the path's points in each."""
    path = paths["learned"]
    layers = np.unique(np.rint(path.cells[:, 2]).astype(int))
    if len(layers) > SLICES:
        layers = layers[np.unique(np.rint(np.linspace(0, len(layers) - 1, SLICES)).astype(int))]
    start = made.energy[made.start[0], made.start[1], made.start[2] - made.z_lower]
    above = made.energy - start
    low, high = above.min(), max(np.quantile(above, 0.5), 2 * max(p.barrier for p in paths.values()), 0.1)
    columns = min(3, len(layers))
    rows = -(-len(layers) // columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(0.8 + 2.6 * columns, 2.7 * rows), squeeze=False, layout="constrained")
    for panel in panels.flat[len(layers) :]:
        panel.remove()
    for panel, layer in zip(panels.flat, layers, strict=False):
        image = panel.imshow(above[:, :, layer - made.z_lower].T, origin="lower", cmap="viridis", vmin=low, vmax=high, aspect="auto")
        for x, y in pieces(path.cells):
            panel.plot(x, y, color="black", linewidth=2.5)
            panel.plot(x, y, color="white", linewidth=1)
        here = path.cells[np.rint(path.cells[:, 2]).astype(int) == layer]
        panel.plot(here[:, 0], here[:, 1], "o", color=LINES["learned"]["color"], markersize=5, markeredgecolor="white", markeredgewidth=0.5)
        for cell, mark in ((made.start, "s"), (made.goal, "*")):
            # Filled where it lies in this layer.
            filled = cell[2] == layer
            panel.plot(cell[0], cell[1], mark, color="white", markersize=8, markeredgecolor="black", alpha=1.0 if filled else 0.5)
        panel.set(title=f"z = {layer}", xlabel="x / cells", ylabel="y / cells")
    bar = figure.colorbar(image, ax=panels[:rows, :].ravel().tolist(), shrink=0.8, extend="max")
    bar.set_label("energy above the start")
    figure.suptitle(
        "The learned path; points lie in the slice, square: start, star: goal (faint where they lie in another slice)", fontsize=8
    )
    return figure


def pieces(cells):
    """Yield x and y of the parts of a path between jumps across a periodic edge."""
    jumps = np.flatnonzero((np.abs(np.diff(cells[:, :2], axis=0)) > 1.5).any(1)) + 1
    for part in np.split(cells, jumps):
        yield part[:, 0], part[:, 1]
