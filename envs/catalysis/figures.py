"""Draw the figures of a catalysis run: energy along the paths, and paths over slices of the landscape. Needs matplotlib."""

import matplotlib
import numpy as np

from warprun.envs.catalysis.analysis import arc_length, unwrapped
from warprun.envs.catalysis.continuous import energy_at

matplotlib.use("agg")
from matplotlib import patheffects, pyplot, ticker

STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
# Exact paths are wide and pale, below the learned path.
LINES = {
    "learned": {"color": "#d55e00", "marker": "o", "markersize": 3.5, "linewidth": 1.5, "zorder": 3},
    "highest return": {"color": "#56b4e9", "linewidth": 5, "alpha": 0.6},
    "lowest barrier": {"color": "#999999", "linewidth": 5, "alpha": 0.6},
}
BANDS = {"learned": "#882255", "lowest barrier": "#222222"}
OUTLINE = [patheffects.withStroke(linewidth=2.6, foreground="black")]
SLICES = 6
LEVELS = 12


def draw(folder, made, paths, bands):
    """Write `energy_profile.png` and `path_slices.png`; `bands` maps the name of a path to its elastic band."""
    with pyplot.rc_context(STYLE):
        for name, figure in {"energy_profile": profile(made, paths, bands), "path_slices": slices(made, paths)}.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
            pyplot.close(figure)


def energy_label(made):
    return f"energy above the start / {made.unit}" if made.unit else "energy above the start"


def profile(made, paths, bands):
    """Draw the energy above the start against the arc length, with the highest point of each path."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.4), layout="constrained")
    axes.axhline(0.0, color="#cccccc", linewidth=0.8, zorder=0)
    for name, path in sorted(paths.items(), key=lambda item: item[0] == "learned"):
        lengths, top = arc_length(made, path), int(path.energies.argmax())
        at = ", ".join(f"{v:.3g}" for v in path.cells[top])
        steps = f"{path.steps} steps" if path.rewards[-1] > made.goal_reward / 2 else "does not arrive"
        label = f"{name}: {steps}, highest {path.barrier:.3f} {made.unit} at ({at})"
        axes.plot(lengths, path.energies, label=label, **LINES[name])
        mark = dict(LINES[name], marker="^", markersize=9, linestyle="", markeredgecolor="white", alpha=1.0, zorder=4)
        axes.plot(lengths[top], path.energies[top], **mark)
    for name, band in bands.items():
        label = f"elastic band from {name}: {band.barrier - band.energies[0]:.3f} {made.unit} above its first minimum"
        axes.plot(arc_length(made, band), band.energies, "--", marker=".", linewidth=0.9, markersize=4, color=BANDS[name], label=label)
    shown = max(arc_length(made, path)[-1] for name, path in (paths | bands).items() if name != "learned")
    own = arc_length(made, paths["learned"])[-1]
    # A path that does not reach the goal is hundreds of cells long; limit the axis so that the others stay visible.
    axes.set_xlim(-0.02 * shown, min(own, 2 * shown) * 1.02 if own > shown else shown * 1.02)
    axes.set(xlabel="arc length / cells", ylabel=energy_label(made))
    figure.legend(*_ordered(axes), loc="outside lower center", fontsize=8)
    return figure


def _ordered(axes):
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda n: not labels[n].startswith("learned"))
    return [handles[n] for n in order], [labels[n] for n in order]


def slices(made, paths):
    """Draw layers of z that the learned path visits (at most SLICES) and the points of the path in each.

    A periodic landscape is shifted so that the path is in the middle and does not cross an edge.
    """
    path = paths["learned"]
    layers = np.unique(np.rint(path.cells[:, 2]).astype(int))
    if len(layers) > SLICES:
        layers = layers[np.rint(np.linspace(0, len(layers) - 1, SLICES)).astype(int)]
    size = np.array(made.energy.shape[:2])
    corner = np.zeros(2, int)
    if made.periodic:
        line = unwrapped(made, path.cells)[:, :2]
        corner = np.ceil((line.min(0) + line.max(0) - size) / 2).astype(int)
    above = np.roll(made.energy - made.start_energy, -corner, axis=(0, 1))
    low, high = above.min(), max(1.2 * np.median(above), 1.5 * paths["highest return"].barrier, 1e-3)
    columns = min(3, len(layers))
    rows = -(-len(layers) // columns)
    width = 2.5 if columns > 1 else 4.5 * min(1.0, size[0] / size[1])
    figure, panels = pyplot.subplots(
        rows,
        columns,
        figsize=(1.2 + width * columns, 0.5 + (width * size[1] / size[0] + 0.3) * rows),
        squeeze=False,
        layout="constrained",
    )
    extent = (corner[0] - 0.5, corner[0] + size[0] - 0.5, corner[1] - 0.5, corner[1] + size[1] - 0.5)
    inside = {"origin": "lower", "extent": extent}
    for n, panel in enumerate(panels.flat):
        if n >= len(layers):
            panel.remove()
            continue
        energy = np.minimum(above[:, :, layers[n] - made.z_lower].T, high)
        image = panel.imshow(energy, cmap="viridis", vmin=low, vmax=high, **inside)
        panel.contour(energy, levels=np.linspace(low, high, LEVELS)[1:-1], colors="white", linewidths=0.4, alpha=0.5, **inside)
        _draw_path(panel, made, path, layers[n], corner, size)
        for axis, count in ((panel.xaxis, size[0]), (panel.yaxis, size[1])):
            axis.set_major_locator(ticker.MaxNLocator(5, integer=True))
            axis.set_major_formatter(lambda value, _, count=count: f"{int(value) % count}")
        panel.set_title(f"z = {layers[n]}" if made.energy.shape[2] > 1 else "", fontsize=9)
        panel.set_xlabel("x / cells" if n >= len(layers) - columns else "")
        panel.set_ylabel("y / cells" if n % columns == 0 else "")
        panel.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=panels.ravel()[: len(layers)].tolist(), shrink=0.8, extend="max", pad=0.02)
    bar.set_label(energy_label(made))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw_path(panel, made, path, layer, corner, size):
    """Draw the whole path, its points in a layer, and both ends: filled if they are in the layer."""

    def placed(cells):
        return (np.asarray(cells, float)[..., :2] - corner + 0.5) % size + corner - 0.5 if made.periodic else np.asarray(cells, float)

    outline = {"path_effects": OUTLINE}
    places = placed(path.cells)
    panel.plot(*with_gaps(places), color="white", linewidth=1.2, label="learned path", **outline)
    here = places[np.rint(path.cells[:, 2]).astype(int) == layer]
    panel.plot(
        here[:, 0], here[:, 1], "o", color="#d55e00", markersize=5, markeredgecolor="white", markeredgewidth=0.6, label="in this slice"
    )
    for cell, mark, label in ((made.start, "s", "start"), (made.goal, "*", "goal")):
        place = placed(cell)
        color = "white" if cell[2] == layer else "none"
        panel.plot(
            place[0], place[1], mark, color=color, markersize=9 if mark == "*" else 6, markeredgecolor="white", label=label, **outline
        )


def with_gaps(cells):
    """Return x and y of a path, with NaN where it jumps across a periodic edge."""
    jumps = np.flatnonzero((np.abs(np.diff(cells[:, :2], axis=0)) > 1.5).any(1)) + 1
    return np.insert(cells[:, :2], jumps, np.nan, axis=0).T


def draw_episode(axes, tables):
    """Draw what all moments of an episode share: a landscape with start and goal, and axes for the energy above the start along the path.

    Return `show(state, past)`, which draws a moment: the layer of z that is nearest to the atom, and the path until then.
    """
    start, goal = (tables.start_x, tables.start_y, tables.start_z), (tables.goal_x, tables.goal_y, tables.goal_z)
    above = tables.energy - tables.energy[start[0], start[1], start[2] - tables.z_lower]
    low, high = above.min(), max(1.2 * np.median(above), 1e-3)
    grid = axes.figure.add_gridspec(1, 2, width_ratios=(1, 1.1))
    axes.set_subplotspec(grid[0])
    image = axes.imshow(above[:, :, 0].T, cmap="viridis", vmin=low, vmax=high, origin="lower")
    (path,) = axes.plot((), (), color="white", linewidth=1.2, path_effects=OUTLINE)
    edge = {"markeredgecolor": "white", "path_effects": OUTLINE}
    marks = [axes.plot(*cell[:2], mark, markersize=size, **edge)[0] for cell, mark, size in ((start, "s", 6), (goal, "*", 11))]
    (atom,) = axes.plot((), (), "o", color="#d55e00", markersize=8, markeredgecolor="white", clip_on=False, zorder=5)
    axes.set(xlabel="x / cells", ylabel="y / cells", title=" " if tables.layers > 1 else "")
    profile = axes.figure.add_subplot(grid[1])
    profile.axhline(0.0, color="#cccccc", linewidth=0.8)
    (line,) = profile.plot((), (), "o-", color="#d55e00", linewidth=1.5, markersize=6, clip_on=False)
    profile.set(xlabel="step", ylabel="energy above the start")
    profile.spines[["top", "right"]].set_visible(False)
    axes.figure.set_size_inches(8, 4)
    contours, shown = [], []

    def show_layer(layer):
        energy = np.minimum(above[:, :, layer - tables.z_lower].T, high)
        image.set_data(energy)
        for old in contours:
            old.remove()
        contours[:] = [axes.contour(energy, levels=np.linspace(low, high, LEVELS)[1:-1], colors="white", linewidths=0.4, alpha=0.5)]
        for mark, cell in zip(marks, (start, goal), strict=True):
            mark.set_markerfacecolor("white" if cell[2] == layer else "none")
        if tables.layers > 1:
            axes.set_title(f"z = {layer}")

    def show(state, past):
        layer = int(np.rint(state.z))
        if shown != [layer]:
            show_layer(layer)
            shown[:] = [layer]
        cells = np.stack([past.x, past.y, past.z], 1).astype(float)
        path.set_data(*with_gaps(cells))
        atom.set_data((state.x,), (state.y,))
        along = energies(cells, tables) - energies(np.array([start]), tables)
        line.set_data(np.arange(len(along)), along)
        line.set_markevery([len(along) - 1])
        profile.set_xlim(-0.5, max(20, len(along)))
        bottom, top = min(along.min(), 0.0), max(along.max(), 0.05 * high)
        profile.set_ylim(bottom - 0.1 * (top - bottom), top + 0.1 * (top - bottom))

    return show


def energies(cells, tables):
    """Return the energies [n] of points [n, 3], between cells interpolated."""
    return np.array([float(energy_at(*np.float32(cell), tables)) for cell in cells])
