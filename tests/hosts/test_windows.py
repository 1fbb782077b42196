"""One-sided windows of torch.distributed between hosts that each have two ranks."""

from __future__ import annotations

import pytest
from host_jobs import HostJob

from hosts import Hosts, ipv4

pytest.importorskip("torch")

SCRIPT = """
from datetime import timedelta
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group(
    "malt", init_method=AT, rank=rank, world_size=size, timeout=timedelta(seconds=60)
)
own = torch.zeros(size, 50_000)
window = dist.group.WORLD.new_window(own)
others = [other for other in range(size) if other != rank]
mapped = []
for other in range(size):
    try:
        mapped.append(window.map_remote_tensor(other).data_ptr() != 0)
    except malt.ConfigError as error:
        assert f"rank {other} is on another host" in str(error), error
        mapped.append(False)
wrong = 0
for number in range(1, 31):
    given = torch.full((50_000,), float(rank + number))
    for other in others:
        window.put(given, other, rank * 50_000)
        window.signal(other)
    for other in others:
        window.wait_signal(other)
        wrong += not bool((own[other] == other + number).all())
    for other in others:
        window.signal(other)
    for other in others:
        window.wait_signal(other)
tell(mapped=mapped, wrong=wrong)
if rank == 0:
    await_flag("cut")
    begin = time.monotonic()
    try:
        window.wait_signal(2)
    except malt.Error as error:
        tell(kind=type(error).__name__, ranks=error.ranks, seconds=time.monotonic() - begin)
await_flag("over")
os._exit(0)
"""


def test_ranks_put_to_their_own_and_to_another_host(hosts: Hosts) -> None:
    at = f"tcp://{ipv4(0)}:29600"
    job = HostJob(hosts, SCRIPT, "--keep-going", on=(0, 1), AT=at)
    job.await_told("wrong")
    for rank in range(job.size):
        assert job.told(rank)["wrong"] == 0
        assert job.told(rank)["mapped"] == [other // 2 == rank // 2 for other in range(job.size)]
    hosts.link(1, up=False)
    job.raise_flag("cut")
    job.await_told("kind", ranks=[0])
    told = job.told(0)
    job.raise_flag("over")
    assert (told["kind"], told["ranks"]) == ("PeerError", (2,))
    assert told["seconds"] < 20  # the silence is 5 s
