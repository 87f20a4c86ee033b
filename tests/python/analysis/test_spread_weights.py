# SPDX-License-Identifier: MIT
"""Models whose weights are spread over processes by FSDP: here one process has all of them."""

import pytest
import torch

import attnscope as asc
import models

distributed = pytest.importorskip("torch.distributed")


@pytest.fixture
def mesh():
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("no processes to spread weights over")
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_model_spread_over_processes_is_analyzed(mesh, is_fresh):
    """Its base alone, which is run of other models, cannot gather its weights.

    The first pass settles which module gathers what; a captured one may be that pass.
    """
    from torch.distributed.fsdp import fully_shard

    model = models.tiny("llama")
    texts = [[5, 6, 7, 8, 9], [9, 8, 7]]
    expected = asc.analyze(model, texts, ["sink_share"], progress=False)["heads"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(texts[:1])).logits
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if not is_fresh:
        with torch.no_grad():
            model(input_ids=torch.tensor(texts[:1]))
    for lazy in (False, True):
        metrics = ["sink_share"] if lazy else ["sink_share", "fiedler_value"]
        heads = asc.analyze(model, texts, metrics, progress=False)["heads"]
        torch.testing.assert_close(
            torch.tensor(heads["sink_share"]), torch.tensor(expected["sink_share"]), rtol=0, atol=1e-6
        )
        with torch.no_grad():
            after = model(input_ids=torch.tensor(texts[:1])).logits
        torch.testing.assert_close(after, logits, rtol=0, atol=1e-5)
