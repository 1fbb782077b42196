"""The calls that wait for other ranks, and the script of a job of two in which one is made."""

# What needs what before: the other rank's part is to be silent, from the flag "ready" on.
CALLS = {
    "scatter": "queue.scatter",
    "gather": "lambda: latest.gather(malt.SUM, staleness=0)",
    "allreduce": "lambda: latest.allreduce(malt.SUM)",
    "barrier": "malt.barrier",
    "vector": "lambda: malt.vector(np.zeros(3))",
    "save": "lambda: malt.save('saved', {'w': latest})",
    "finalize": "malt.finalize",
}

_SCRIPT = """
meet("here")
malt.init(timeout=timeout, silence=silence)
latest = malt.vector(np.ones(3))
queue = malt.vector(np.ones(3), policy="queue", depth=1)
malt.barrier()
if rank != caller:
    tell(pid=os.getpid())
    time.sleep(1000)
queue.scatter()
latest.scatter()
tell(ready=True)
if is_hit_before: await_flag("hit")
start = time.monotonic()
error = error_of(CALL)
tell(error=error, seconds=time.monotonic() - start)
os._exit(0)
"""


def script_of(
    call: str, *, timeout: float, silence: float, is_hit_before: bool, caller: int = 0
) -> str:
    """Rank `caller` makes the call, as soon as it can or when the flag "hit" is up.

    It tells `ready` before, then `error` (None: it went on) and `seconds`; the other tells `pid`.
    """
    given = {
        "timeout": timeout,
        "silence": silence,
        "is_hit_before": is_hit_before,
        "caller": caller,
    }
    header = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    return header + _SCRIPT.replace("CALL", CALLS[call])
