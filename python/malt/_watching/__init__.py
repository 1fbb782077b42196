"""Looking at running jobs: what the ranks' recorders hold, as a table, a trace, counters, advice.

Begin with `sources.py`, which finds the recorders of a job and opens them. `rates.py` makes rates
of two looks at them, and `diagnosis.py` says what is wrong with these. `collect.py` is the process
that `malt run --trace`, `--report`, `--metrics`, `--otel` and `--dashboard` start; `trace.py`,
`run_report.py`, `metrics.py` and `opentelemetry.py` write what it collects, and `dashboard.py`
serves what `board.py` samples. The page is in `page/`, with uPlot (MIT), which draws its curves.
`merge.py` makes one trace of those of several hosts. For `malt doctor`, `unanswered.py` finds
ranks that cannot reach others.
"""
