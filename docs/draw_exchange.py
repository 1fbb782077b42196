"""Draw the picture of README.md: what scatter and gather do between four ranks.

    python docs/draw_exchange.py

It writes exchange.svg to docs/images, by hand: the file stays small.
"""

from pathlib import Path

IMAGE = Path(__file__).parent / "images" / "exchange.svg"
# A colour a rank, as in draw_hosts.py.
RANKS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")
GATHERS = 2  # the rank whose gather is drawn
WIDTH, HEIGHT, STEP = 760, 312, 185
STYLE = "text { font: 13px sans-serif; fill: #24292f } .head { font-weight: bold }"


def box(x: float, y: float, width: float, text: str, colour: str) -> str:
    """A box of one line."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="30" rx="4" fill="{colour}22" '
        f'stroke="{colour}" stroke-width="1.5"/>'
        f'<text x="{x + width / 2}" y="{y + 20}" text-anchor="middle">{text}</text>'
    )


def arrow(
    start: tuple[float, float], end: tuple[float, float], colour: str, *, dashed: bool
) -> str:
    """A line with a head."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{colour}" '
        f'stroke-width="2"{dash} marker-end="url(#head{colour[1:]})"/>'
    )


def head(colour: str) -> str:
    """The head of that colour's arrows."""
    return (
        f'<marker id="head{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0 0 8 4 0 8z" fill="{colour}"/></marker>'
    )


def draw() -> str:
    """The picture."""
    parts = [head(colour) for colour in RANKS]
    parts.append(
        f'<rect x="10" y="205" width="{WIDTH - 20}" height="70" rx="8" fill="#f6f8fa" '
        'stroke="#8c959f"/><text x="22" y="267">memory that all ranks read in place</text>'
    )
    for rank, colour in enumerate(RANKS):
        left = 20 + rank * STEP
        parts.append(f'<text x="{left}" y="22" class="head">rank {rank}</text>')
        parts.append(box(left, 32, 160, f"part {rank} of the data", colour))
        parts.append(arrow((left + 80, 62), (left + 80, 88), colour, dashed=False))
        parts.append(f'<text x="{left + 90}" y="80">trains</text>')
        parts.append(box(left, 92, 160, "w, its own model", colour))
        parts.append(box(left, 215, 60, f"w of {rank}", colour))
        parts.append(arrow((left + 30, 122), (left + 30, 212), colour, dashed=False))
        if rank != GATHERS:
            to = 20 + GATHERS * STEP + 100 + 25 * (rank - GATHERS)
            parts.append(arrow((left + 60, 218), (to, 125), colour, dashed=True))
    for at, (dash, meaning) in enumerate(
        [
            ("", "scatter: each rank writes its model there, once"),
            (' stroke-dasharray="5 4"', f"gather: rank {GATHERS} averages what has arrived"),
        ]
    ):
        x = 20 + at * 420
        parts.append(
            f'<line x1="{x}" y1="296" x2="{x + 34}" y2="296" stroke="#24292f" stroke-width="2"'
            f'{dash}/><text x="{x + 42}" y="301">{meaning}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img"><title>scatter and gather between four '
        f'ranks</title><style>{STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" '
        f'fill="white"/>{"".join(parts)}</svg>'
    )


if __name__ == "__main__":
    IMAGE.write_text(draw().replace("><", ">\n<") + "\n")
