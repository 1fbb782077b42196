"""PyTorch's own tests of a process group, with the backend malt: a part of them, chosen for width.

`python tests/harness/torch_suite.py` runs all of them, and gloo beside it.
"""

from __future__ import annotations

import pytest
import torch_suite
from torch_ranks import import_torch

import_torch()

pytestmark = pytest.mark.xdist_group("torch-backend")

CHOSEN = [
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync",
    "test_all_gather_coalesced_complex",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_full_group",
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_full_group_max",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_max",
    "test_all_reduce_full_group_min",
    "test_all_reduce_full_group_product",
    "test_all_reduce_full_group_sum",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_barrier",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_full_group",
    "test_ddp_create_graph",
    "test_ddp_logging_data_cpu",
    "test_destroy_full_group",
    "test_gather_checks",
    "test_gather_full_group",
    "test_get_future",
    "test_irecv",
    "test_isend",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_subgroup",
    "test_reduce_full_group_sum",
    "test_reduce_max",
    "test_scatter_checks",
    "test_scatter_complex",
    "test_scatter_full_group",
    "test_scatter_object_list",
    "test_send_recv",
    "test_send_recv_any_source",
    "test_send_recv_autograd_profiler",
    "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
]


def test_chosen_tests_pass() -> None:
    found = torch_suite.run("malt", 2, CHOSEN, exact=True)
    failed = {name: why for name, (outcome, why) in found.items() if outcome == "failed"}
    assert not failed, "\n\n".join(f"{name}: {why}" for name, why in failed.items())
    skipped = [name for name, (outcome, _) in found.items() if outcome == "skipped"]
    assert len(found) == len(CHOSEN)
    assert not skipped
