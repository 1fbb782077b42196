"""malt.optimize.schedule.run() that is interrupted on one rank at any moment."""

from __future__ import annotations

from pathlib import Path

from jobs import run_job


def test_no_rank_ends_its_rounds_without_one_that_was_interrupted(tmp_path: Path) -> None:
    body = """
from interrupts import interrupts_of_rank_0
class Counting:
    def __init__(self):
        self.drawn, self.state = 0, [0] * size
    def schedule(self, ranks):
        self.drawn += 1
        return None if self.drawn > 1 else list(range(ranks))
    def push(self, part):
        return [part + 1]
    def pull(self, results):
        for result in results:
            self.state[result.part] += int(result.values[0])

def run():
    program = Counting()
    rounds = malt.optimize.schedule.run(program, length=1, dtype=np.int64, staleness=0)
    results.add((rounds, *program.state))  # also those of calls that another rank has to repeat

malt.init(timeout=2)
results, kinds, moments = set(), {}, 0
for where, errors, _ in interrupts_of_rank_0("run", run, ["schedule.py"]):
    kinds |= {type(error).__name__: str(error) for error in errors}
    moments += 1
tell(results=results, kinds=kinds, moments=moments)
malt.barrier()
"""
    result = run_job(tmp_path, 2, body)
    assert result.each("results") == [{(1, 1, 2)}] * 2
    assert result.told[0]["moments"] > 30
    assert "KeyboardInterrupt" in result.told[0]["kinds"]
    kinds = result.told[1]["kinds"]
    assert kinds.keys() <= {"ConfigError", "TimeoutError"}
    assert all("rank 0" in text for text in kinds.values())
