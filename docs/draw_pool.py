"""Draw the picture of docs/pool.md: a pool's process, its ranks, and the memory that they share.

Run from anywhere, with matplotlib installed:

    python docs/draw_pool.py

It writes pool.svg to docs/images.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

IMAGE = Path(__file__).parent / "images" / "pool.svg"

INK = "#24292f"
FAINT = "#8c959f"
# A colour a rank, as in draw_hosts.py.
RANKS = ("#d55e00", "#0072b2")
CHUNKS = 8
WIDTH = 1.0  # of a chunk


def box(axes: Axes, left: float, low: float, size: tuple[float, float], text: str) -> None:
    """A process, or memory."""
    outline = {"boxstyle": "round,pad=0,rounding_size=0.1", "facecolor": "#f6f8fa"}
    axes.add_patch(FancyBboxPatch((left, low), *size, edgecolor=FAINT, **outline))
    axes.text(
        left + size[0] / 2, low + size[1] / 2, text, ha="center", va="center", color=INK, fontsize=8
    )


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    """From one process to another, or from memory to a process."""
    style = {"arrowstyle": "-|>", "mutation_scale": 10, "linewidth": 1.3}
    axes.add_patch(FancyArrowPatch(start, end, color=colour, **style))


def main() -> None:
    """Draw and save."""
    plt.rcParams["svg.hashsalt"] = "malt"  # the same file from the same program
    figure, axes = plt.subplots(figsize=(8, 3.6))
    box(axes, 2.4, 3.5, (3.2, 0.8), "your script or notebook\nmalt.Pool(2)")
    for rank, colour in enumerate(RANKS):
        middle = 2.0 + 4 * rank
        box(axes, middle - 1.0, 1.9, (2.0, 0.6), f"rank {rank}")
        arrow(axes, (3.3 + 1.2 * rank, 3.45), (middle - 0.2, 2.55), INK)
        arrow(axes, (middle + 0.2, 2.55), (3.7 + 1.2 * rank, 3.45), colour)
        for chunk in range(4 * rank, 4 * rank + 4):
            left = chunk * WIDTH
            axes.add_patch(
                Rectangle((left, 0.2), WIDTH, 0.6, facecolor=colour + "33", edgecolor=colour)
            )
            axes.text(left + 0.5, 0.5, f"chunk {chunk}", ha="center", va="center", fontsize=7)
            start = (left + WIDTH / 2, 0.85)
            arrow(axes, start, (middle + (chunk - 4 * rank - 1.5) * 0.4, 1.85), colour)
    axes.text(0.0, 3.0, "function and theta", ha="left", color=INK, fontsize=8)
    axes.text(8.0, 3.0, "sum of the rank's chunks", ha="right", color=INK, fontsize=8)
    axes.text(0.0, -0.15, "shared memory, written once by pool.share()", color=INK, fontsize=8)
    axes.set_xlim(-0.1, CHUNKS * WIDTH + 0.1)
    axes.set_ylim(-0.3, 4.4)
    axes.set_aspect("equal")
    axes.axis("off")
    figure.savefig(IMAGE, bbox_inches="tight", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
