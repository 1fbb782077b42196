"""A progress bar on the terminal, for a training on one rank or on ranks forked here."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from malt._job import joining

if TYPE_CHECKING:
    from malt._training.steps import Step

_SHOW_SECONDS = 0.1


class Progress:
    """Rank 0 shows examples/s, loss, and staleness by rank, for all ranks that it knows of.

    In a job of several processes rank 0 knows only of itself. Ranks forked while this object exists
    write their progress into memory of this process, which shows it.
    """

    def __init__(self, verbose: int | bool | None, ranks: int, examples: int) -> None:
        """`examples` is the most that one rank trains on.

        verbose: 0 or False: nothing; 1 or True: one bar for all ranks; 2: one bar for each rank;
        None: one bar, if standard error is a terminal.
        """
        self._steps = np.frombuffer(mmap.mmap(-1, ranks * 3 * 8)).reshape(ranks, 3)
        self._each = ranks if verbose == 2 else 1
        self._total = ranks * examples // self._each
        company = joining.company()
        asked = sys.stderr.isatty() if verbose is None else bool(verbose)
        self._is_shown = asked and (company is None or company.rank == 0)
        self._must_show = bool(verbose)
        self._shows_itself = ranks == 1
        self._last = 0.0
        self._bars: list[Any] = []

    def __enter__(self) -> Progress:
        if self._is_shown:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                if self._must_show:
                    raise ImportError(
                        "verbose=True shows a bar by tqdm, which is not installed: pip install tqdm"
                    ) from None
            else:
                self._bars = [
                    tqdm(
                        total=self._total,
                        desc=f"rank {at}" if self._each > 1 else None,
                        position=at,
                        unit=" examples",
                        unit_scale=True,
                        mininterval=_SHOW_SECONDS if sys.stderr.isatty() else 10,
                    )
                    for at in range(self._each)
                ]
        return self

    def __exit__(self, *_: object) -> None:
        self.show()
        for bar in self._bars:
            bar.close()

    def of(self, rank: int) -> Callable[[Step], object]:
        """Return the function that `rank` calls after each exchange."""

        def note(step: Step) -> None:
            self._steps[rank] = step[:3]
            if self._shows_itself and time.monotonic() - self._last > _SHOW_SECONDS:
                self._last = time.monotonic()
                self.show()

        return note

    def show(self) -> None:
        for bar, steps in zip(self._bars, np.split(self._steps, self._each), strict=False):
            examples, losses, ages = steps.T
            staleness = " ".join(str(int(age)) for age in ages)
            bar.set_postfix_str(f"loss {losses.mean():.4f}, staleness {staleness}", refresh=False)
            bar.update(int(examples.sum()) - bar.n)
