"""Draw the picture of docs/transports.md: two hosts with two ranks each, and what goes between.

Run from anywhere, with matplotlib installed:

    python docs/draw_hosts.py

It writes hosts.svg to docs/images.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

IMAGE = Path(__file__).parent / "images" / "hosts.svg"

INK = "#24292f"
FAINT = "#8c959f"
# A colour a rank, which people with colour-blindness tell apart too (Okabe and Ito, 2008).
RANKS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")
HOSTS = ((0, 1), (2, 3))

HOST_WIDTH, GAP = 5.0, 1.6
BOX_WIDTH, BOX_HEIGHT = 1.05, 0.62
MEMORY, RANK = 0.55, 2.35  # heights at which they begin


def host_of(rank: int) -> int:
    """The host on which it runs."""
    return next(host for host, ranks in enumerate(HOSTS) if rank in ranks)


def place_of_rank(rank: int) -> tuple[float, float]:
    """The middle of its box."""
    host = host_of(rank)
    left = host * (HOST_WIDTH + GAP)
    return left + (1.35, 3.65)[HOSTS[host].index(rank)], RANK + BOX_HEIGHT / 2


def place_of_mailbox(host: int, rank: int) -> tuple[float, float]:
    """The middle of the mailbox of `rank` in the memory of `host`."""
    return host * (HOST_WIDTH + GAP) + 0.72 + 1.185 * rank, MEMORY + BOX_HEIGHT / 2


def box(axes: Axes, middle: tuple[float, float], text: str, colour: str, *, copy: bool) -> None:
    """A rank, or a mailbox; a copy of one is dashed."""
    corner = (middle[0] - BOX_WIDTH / 2, middle[1] - BOX_HEIGHT / 2)
    fill = {"facecolor": "white", "linestyle": "--"} if copy else {"facecolor": colour + "33"}
    axes.add_patch(
        Rectangle(corner, BOX_WIDTH, BOX_HEIGHT, edgecolor=colour, linewidth=1.4, **fill)
    )
    axes.text(*middle, text, ha="center", va="center", color=INK, fontsize=8)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, bend: float = 0.0
) -> None:
    """What a rank writes goes from here to there."""
    style = f"arc3,rad={bend}"
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=10,
            color=colour,
            linewidth=1.3,
            connectionstyle=style,
        )
    )


def draw_host(axes: Axes, host: int) -> None:
    """Its ranks and its memory."""
    left = host * (HOST_WIDTH + GAP)
    outline = {"boxstyle": "round,pad=0,rounding_size=0.15", "facecolor": "#f6f8fa"}
    axes.add_patch(FancyBboxPatch((left, 0), HOST_WIDTH, 4.1, edgecolor=FAINT, **outline))
    axes.text(left + 0.15, 3.8, f"host {'AB'[host]}", color=INK, fontsize=9, weight="bold")
    axes.text(left + 0.15, 0.2, "its memory", color=INK, fontsize=8)
    for rank, colour in enumerate(RANKS):
        text = f"copy of\n{rank}'s" if host_of(rank) != host else f"mailbox\nof {rank}"
        box(axes, place_of_mailbox(host, rank), text, colour, copy=host_of(rank) != host)
    for rank in HOSTS[host]:
        x, y = place_of_rank(rank)
        box(axes, (x, y), f"rank {rank}", RANKS[rank], copy=False)
        mailbox = place_of_mailbox(host, rank)
        below = (x, y - BOX_HEIGHT / 2)
        arrow(axes, below, (mailbox[0], mailbox[1] + BOX_HEIGHT / 2), RANKS[rank])


def draw_connection(axes: Axes, rank: int) -> None:
    """From the rank to its proxy on the other host, which writes the copy there."""
    other = 1 - host_of(rank)
    proxy = HOSTS[other][rank % len(HOSTS[other])]
    (from_x, top), (to_x, _) = place_of_rank(rank), place_of_rank(proxy)
    top += BOX_HEIGHT / 2
    # Arcs over the boxes, side by side.
    bend = -0.2 if other == 1 else 0.2
    arrow(axes, (from_x + 0.25, top), (to_x - 0.25, top), RANKS[rank], bend)
    copy = place_of_mailbox(other, rank)
    below = (place_of_rank(proxy)[0], RANK)
    arrow(axes, below, (copy[0], copy[1] + BOX_HEIGHT / 2), RANKS[rank])


def main() -> None:
    """Draw and save."""
    plt.rcParams["svg.hashsalt"] = "malt"  # the same file from the same program
    figure, axes = plt.subplots(figsize=(9, 3.4))
    for host in range(len(HOSTS)):
        draw_host(axes, host)
    for rank in range(len(RANKS)):
        draw_connection(axes, rank)
    middle = HOST_WIDTH + GAP / 2
    axes.text(middle, 4.35, "network", ha="center", color=FAINT, fontsize=8)
    axes.set_xlim(-0.1, 2 * HOST_WIDTH + GAP + 0.1)
    axes.set_ylim(-0.1, 4.7)
    axes.set_aspect("equal")
    axes.axis("off")
    figure.savefig(IMAGE, bbox_inches="tight", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
