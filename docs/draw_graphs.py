"""Draw the pictures of docs/graphs.md and print its table of spectral gaps.

Run from anywhere, with malt and matplotlib installed:

    python docs/draw_graphs.py

It writes graphs.svg, spectral_gap.svg and halton.svg to docs/images. The graphs are pure functions,
so neither a job nor more than one process is needed.
"""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import malt

IMAGES = Path(__file__).parent / "images"

RANKS_DRAWN = 12
ROUNDS_DRAWN = 5

INK = "#24292f"
FAINT = "#c9d1d9"
# Colours that people with colour-blindness tell apart too (Okabe and Ito, 2008).
COLOURS = {
    "ALL": "#24292f",
    "HALTON": "#d55e00",
    "EXPONENTIAL": "#0072b2",
    "ONE_PEER": "#cc79a7",
    "RANDOM": "#009e73",
    "RING": "#e69f00",
    "STAR": "#7a5c3e",
}
GRAPHS = {
    "ALL": malt.ALL,
    "ONE_PEER": malt.ONE_PEER,
    "RANDOM": malt.RANDOM(2, seed=7),
    "EXPONENTIAL": malt.EXPONENTIAL,
    "HALTON": malt.HALTON,
    "STAR": malt.STAR,
    "RING": malt.RING,
}
MOST = 512  # ranks, in the plots
TABLE_SIZES = (4, 8, 16, 64, 256)


def published_halton(size: int) -> malt.Graph:
    """The rule as MALT's paper gives it: the first log2(size) numbers of the Halton sequence."""
    offsets = []
    for index in range(1, int(math.log2(size)) + 1):
        number, digit, rest = 0.0, 0.5, index
        while rest:
            number, digit, rest = number + digit * (rest % 2), digit / 2, rest // 2
        offsets.append(int(size * number))
    return malt.Graph([(r, (r + offset) % size) for r in range(size) for offset in offsets])


# ---- who sends to whom ----


def place(rank: int, size: int, radius: float = 1.0) -> tuple[float, float]:
    """Where a rank stands: on a circle, clockwise from the top."""
    angle = math.pi / 2 - 2 * math.pi * rank / size
    return radius * math.cos(angle), radius * math.sin(angle)


def draw_arrow(axes: Axes, start: int, end: int, colour: str, strong: bool) -> None:
    """From rank to rank, bent towards the middle; with a head if it is `strong`."""
    steps = (end - start) % RANKS_DRAWN
    bend = 0.12 * ((2 * steps < RANKS_DRAWN) - (2 * steps > RANKS_DRAWN))
    axes.add_patch(
        FancyArrowPatch(
            place(start, RANKS_DRAWN),
            place(end, RANKS_DRAWN),
            arrowstyle="-|>,head_length=3.4,head_width=1.7" if strong else "-",
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=6.5,
            shrinkB=6.5,
            linewidth=1.9 if strong else 0.6,
            color=colour,
            zorder=2 if strong else 1,
        )
    )


def draw_graph(axes: Axes, graph: malt.Graph, colour: str, title: str, at_round: int = 0) -> None:
    """All edges faintly, those of rank 0 with an arrow."""
    to = graph.out(0, RANKS_DRAWN, at_round)
    for rank in range(1, RANKS_DRAWN):
        for neighbour in graph.out(rank, RANKS_DRAWN, at_round):
            draw_arrow(axes, rank, neighbour, FAINT, strong=False)
    for neighbour in to:
        draw_arrow(axes, 0, neighbour, colour, strong=True)
    for rank in range(RANKS_DRAWN):
        x, y = place(rank, RANKS_DRAWN)
        met = rank == 0 or rank in to
        axes.plot(
            x,
            y,
            "o",
            markersize=11.5,
            color=colour if met else "white",
            markeredgecolor=colour if met else "#8c959f",
            markeredgewidth=0.9,
            zorder=3,
        )
        axes.text(
            x,
            y - 0.012,
            str(rank),
            ha="center",
            va="center",
            fontsize=6.8,
            color="white" if met else INK,
            zorder=4,
        )
    axes.set_title(title, fontsize=9, color=INK, pad=3)
    axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    axes.axis("off")


def graphs_figure() -> Figure:
    """A row of graphs that stay as they are, and one for each that varies by round."""
    figure, grid = plt.subplots(3, ROUNDS_DRAWN, figsize=(10.5, 6.9))
    static = ("ALL", "HALTON", "EXPONENTIAL", "RING", "STAR")
    for axes, name in zip(grid[0], static, strict=True):
        draw_graph(axes, GRAPHS[name], COLOURS[name], name)
    for row, name in ((grid[1], "ONE_PEER"), (grid[2], "RANDOM")):
        for at_round, axes in enumerate(row):
            title = "RANDOM(2, seed=7)" if name == "RANDOM" else name
            title = f"{title}, round 0" if at_round == 0 else f"round {at_round}"
            draw_graph(axes, GRAPHS[name], COLOURS[name], title, at_round)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.955, bottom=0.01, wspace=0.04, hspace=0.13)
    return figure


# ---- how fast they agree ----


def sizes_up_to(most: int, count: int) -> list[int]:
    """About `count` sizes, evenly spaced on a logarithmic scale, with the powers of two."""
    spaced = {round(4 * (most / 4) ** (i / (count - 1))) for i in range(count)}
    return sorted(spaced | {1 << i for i in range(2, most.bit_length())})


def style(axes: Axes, title: str) -> None:
    """What all plots of spectral gaps have in common."""
    axes.set_title(title, fontsize=10.5, color=INK, loc="left")
    axes.set_xscale("log", base=2)
    ticks = [4 << step for step in range(8)]
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.set_xlabel("ranks", color=INK)
    axes.set_ylabel("spectral gap", color=INK)
    axes.grid(which="major", color="#eaeef2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5, color=FAINT)


def draw_gap(axes: Axes, name: str, sizes: list[int], label: str = "", lift: float = 0) -> None:
    """A line, named at its right end; `lift` (points) keeps the names apart."""
    gaps = [GRAPHS[name].spectral_gap(size) for size in sizes]
    axes.plot(sizes, gaps, color=COLOURS[name], linewidth=1.5)
    axes.annotate(
        label or name,
        (MOST, gaps[-1]),
        xytext=(7, lift),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        color=COLOURS[name],
        annotation_clip=False,
    )


def draw_fast(axes: Axes) -> None:
    """The graphs whose gap hardly falls as the job grows."""
    sizes = sizes_up_to(MOST, 60)
    powers = [size for size in sizes if size & (size - 1) == 0]
    draw_gap(axes, "ALL", [4, MOST])
    # ONE_PEER averages exactly at powers of two and nowhere else: one line would be all spikes.
    draw_gap(axes, "ONE_PEER", [size for size in sizes if size not in powers], lift=4)
    axes.plot(
        powers,
        [malt.ONE_PEER.spectral_gap(size) for size in powers],
        "o",
        markersize=5.5,
        color=COLOURS["ONE_PEER"],
        zorder=3,
        clip_on=False,
    )
    axes.text(4, 0.9, "dots: ONE_PEER at powers of two", fontsize=8.5, color=COLOURS["ONE_PEER"])
    draw_gap(axes, "RANDOM", sizes, "RANDOM(2)", lift=4)
    draw_gap(axes, "EXPONENTIAL", sizes, lift=-10)
    draw_gap(axes, "HALTON", sizes)
    axes.set_ylim(0, 1.06)


def draw_slow(axes: Axes) -> None:
    """The graphs with a fixed number of edges a rank, on a logarithmic scale."""
    sizes = sizes_up_to(MOST, 60)
    for name in ("HALTON", "STAR", "RING"):
        draw_gap(axes, name, sizes)
    axes.set_yscale("log")
    axes.minorticks_off()


def gaps_figure() -> Figure:
    """The spectral gap of every graph as the job grows."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    style(left, "Graphs that keep up as the job grows")
    draw_fast(left)
    style(right, "Graphs that do not (logarithmic scale)")
    draw_slow(right)
    figure.subplots_adjust(left=0.055, right=0.93, top=0.92, bottom=0.13, wspace=0.4)
    return figure


def halton_figure() -> Figure:
    """HALTON next to the published rule, whose gaps of zero are crosses at the foot."""
    foot = 3e-4
    sizes = range(4, MOST + 1)
    published = [published_halton(size).spectral_gap(size) for size in sizes]
    parted = [size for size, gap in zip(sizes, published, strict=True) if gap == 0]
    figure, axes = plt.subplots(figsize=(7.2, 3.8))
    style(axes, "HALTON at every size, and the rule it mends")
    axes.plot(
        sizes,
        [malt.HALTON.spectral_gap(size) for size in sizes],
        color=COLOURS["HALTON"],
        linewidth=1.3,
    )
    axes.plot(sizes, [gap or math.nan for gap in published], "o", color="#8c959f", markersize=1.8)
    axes.plot(parted, [foot] * len(parted), "x", markersize=4.5, color="#8c959f", markeredgewidth=1)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_ylim(foot * 0.7, 1.3)
    axes.text(180, 0.5, "malt.HALTON", color=COLOURS["HALTON"], fontsize=9)
    axes.text(90, 0.03, "as published", color="#57606a", fontsize=9)
    axes.text(
        4, foot * 1.35, "crosses: as published, disconnected (gap 0)", color="#57606a", fontsize=8.5
    )
    figure.subplots_adjust(left=0.09, right=0.98, top=0.92, bottom=0.13)
    return figure


def print_table() -> None:
    """As docs/graphs.md has it: out-neighbours and spectral gap at each size."""
    print("| graph |" + "".join(f" {size} ranks |" for size in TABLE_SIZES))
    print("|---|" + "---|" * len(TABLE_SIZES))
    for name, graph in GRAPHS.items():
        cells = []
        for size in TABLE_SIZES:
            degrees = sorted({len(graph.out(rank, size)) for rank in range(size)})
            cells.append(f" {' or '.join(map(str, degrees))} · {graph.spectral_gap(size):.2g} |")
        print(f"| `{name}` |" + "".join(cells))


def main() -> None:
    """Write the pictures; print the table."""
    plt.rcParams.update({"svg.hashsalt": "malt", "svg.fonttype": "path"})
    IMAGES.mkdir(exist_ok=True)
    figures = {"graphs": graphs_figure, "spectral_gap": gaps_figure, "halton": halton_figure}
    for name, draw in figures.items():
        draw().savefig(IMAGES / f"{name}.svg", facecolor="white", metadata={"Date": None})
    print_table()


if __name__ == "__main__":
    main()
