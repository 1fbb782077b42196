"""A model divided over four ranks answers as with gloo: two stages of two ranks each.

The calls are those of vLLM on CPUs: a group of tensors and one of objects for each part, embeddings
and layers by columns and rows, logits that are gathered or reduced, dictionaries of tensors between
stages, and experts by all_to_all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_ranks import import_torch, run_ranks

import_torch()

pytestmark = pytest.mark.xdist_group("torch-backend")

SERVING = """
VOCABULARY, HIDDEN, WIDE, TOKENS = 64, 32, 128, 12

class Part:
    def __init__(self, of_ranks, name):
        for ranks in of_ranks:
            tensors = dist.new_group(ranks, backend=name)
            objects = dist.new_group(ranks, backend="gloo")
            if rank in ranks:
                self.tensors, self.objects, self.ranks = tensors, objects, ranks
        self.rank, self.size = self.ranks.index(rank), len(self.ranks)

    def own(self, weight, dim):
        return weight.chunk(self.size, dim)[self.rank].contiguous()

    def all_reduce(self, x):
        dist.all_reduce(x, group=self.tensors)
        return x

    def all_gather(self, x):
        found = torch.empty(self.size * x.shape[0], *x.shape[1:], dtype=x.dtype)
        dist.all_gather_into_tensor(found, x, group=self.tensors)
        return torch.cat(found.chunk(self.size), dim=-1)

    def gather(self, x):
        found = [torch.empty_like(x) for _ in self.ranks] if self.rank == 0 else None
        dist.gather(x, found, dst=self.ranks[0], group=self.tensors)
        return None if found is None else torch.cat(found, dim=-1)

    def reduce_scatter(self, x):
        found = torch.empty(x.shape[0] // self.size, *x.shape[1:], dtype=x.dtype)
        dist.reduce_scatter_tensor(found, x, group=self.tensors)
        return found

    def broadcast_dict(self, values):
        plan = [None]
        if self.rank == 0:
            plan = [[(key, value.shape, value.dtype) for key, value in values.items()]]
        dist.broadcast_object_list(plan, src=self.ranks[0], group=self.objects)
        if self.rank:
            values = {key: torch.empty(shape, dtype=dtype) for key, shape, dtype in plan[0]}
        works = [
            dist.broadcast(value, src=self.ranks[0], group=self.tensors, async_op=True)
            for value in values.values()
        ]
        for work in works:
            work.wait()
        return values

    def send_dict(self, values, to):
        plan = [[(key, value.shape, value.dtype) for key, value in values.items()]]
        dist.send_object_list(plan, dst=self.ranks[to], group=self.objects)
        for work in [
            dist.isend(value, self.ranks[to], group=self.tensors) for value in values.values()
        ]:
            work.wait()

    def receive_dict(self, source):
        plan = [None]
        dist.recv_object_list(plan, src=self.ranks[source], group=self.objects)
        values = {key: torch.empty(shape, dtype=dtype) for key, shape, dtype in plan[0]}
        for work in [
            dist.irecv(value, self.ranks[source], group=self.tensors) for value in values.values()
        ]:
            work.wait()
        return values

def answers(name):
    join(name)
    dist.all_reduce(torch.zeros(1))
    tensor, stage = Part([[0, 1], [2, 3]], name), Part([[0, 2], [1, 3]], name)
    torch.manual_seed(0)
    embedding, output = torch.randn(VOCABULARY, HIDDEN), torch.randn(VOCABULARY, HIDDEN)
    layers = [(torch.randn(WIDE, HIDDEN), torch.randn(HIDDEN, WIDE) / WIDE) for _ in range(2)]
    embedding, output, layers = (
        embedding.bfloat16(), output.bfloat16(), [(a.bfloat16(), b.bfloat16()) for a, b in layers]
    )
    up, down = layers[stage.rank]
    up, down = tensor.own(up, 0), tensor.own(down, 1)
    first = tensor.rank * VOCABULARY // 2
    tokens, told = [3, 1, 4], {}
    for _ in range(TOKENS):
        if stage.rank == 0:
            here = torch.tensor(tokens) - first
            has = (here >= 0) & (here < VOCABULARY // 2)
            x = tensor.own(embedding, 0)[here.clamp(0, VOCABULARY // 2 - 1)] * has[:, None]
            x = tensor.all_reduce(x)
        else:
            x = stage.receive_dict(0)["hidden"]
        x = x + tensor.all_reduce(torch.relu(x @ up.T) @ down.T)
        if stage.rank == 0:
            stage.send_dict({"hidden": x, "positions": torch.arange(len(tokens))}, 1)
        else:
            logits = tensor.gather(x[-1:] @ tensor.own(output, 0).T)
            told["gathered"] = tensor.all_gather(x[-1:] @ tensor.own(output, 0).T).float().tolist()
            if tensor.rank == 0:
                told["logits"] = logits.float().tolist()
            chosen = {"token": logits.argmax(-1)} if tensor.rank == 0 else None
            chosen = tensor.broadcast_dict(chosen)["token"]
        chosen = chosen if stage.rank else torch.empty(1, dtype=torch.int64)
        dist.broadcast(chosen, src=stage.ranks[1], group=stage.tensors)
        tokens.append(chosen.item())
    told["parts"] = tensor.reduce_scatter(torch.arange(8.0).view(4, 2) * (rank + 1)).tolist()
    splits = [1, 3] if tensor.rank == 0 else [1, 1]
    given = torch.arange(float(sum(splits))) + 10 * rank
    taken = torch.empty(2 if tensor.rank == 0 else 4)
    dist.all_to_all_single(
        taken, given, [1, 1] if tensor.rank == 0 else [3, 1], splits, group=tensor.tensors
    )
    told["experts"] = taken.tolist()
    told["names"] = [None] * tensor.size
    dist.all_gather_object(told["names"], f"rank {rank}", group=tensor.tensors)
    dist.barrier(group=tensor.objects)
    dist.destroy_process_group()
    return {"tokens": tokens, **told}

with torch.inference_mode():
    tell(malt=answers("malt"), gloo=answers("gloo"))
"""


def test_a_divided_model_answers_as_with_gloo(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, 4, SERVING)
    by_malt = ranks.each("malt")
    assert by_malt == ranks.each("gloo")
    assert all(told["tokens"] == by_malt[0]["tokens"] for told in by_malt)
    assert len(set(by_malt[0]["tokens"])) > 3
    assert by_malt[2]["gathered"] == by_malt[3]["gathered"] == by_malt[2]["logits"]
    assert [told["experts"] for told in by_malt[:2]] == [[0, 10], [1, 2, 3, 11]]
    assert by_malt[3]["names"] == ["rank 2", "rank 3"]
