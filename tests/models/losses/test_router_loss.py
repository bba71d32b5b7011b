"""The loss of routers, beside the library's, and in stages as in one piece."""
# ruff: noqa: N806  shapes are written at the end of names

import dataclasses

import pytest
import torch
from models.family_trials import family_run
from torch.nn.functional import cross_entropy

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.target_marks import NO_TARGET
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.library.hf_library import library_model
from p2pswarm.models.losses.router_loss import RouterLoss, Routers, balance_of
from p2pswarm.node.run.preparation import check_routers
from p2pswarm.server.devices.row_split import require_splittable
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

transformers = pytest.importorskip("transformers")


def balanced(name: str = "mixtral") -> RunConfig:
    run = family_run(name)
    model = dataclasses.replace(run.model, router_loss=True, dtype="float64")
    batch = BatchConfig(microbatches=2, rows=2, samples="whole")
    return dataclasses.replace(run, model=model, batch=batch)


def theirs(logits: torch.Tensor, chosen: int) -> torch.Tensor:
    from transformers.models.mixtral.modeling_mixtral import (  # noqa: PLC0415
        load_balancing_loss_func,
    )

    return load_balancing_loss_func((logits,), logits.shape[-1], chosen)


def test_one_layers_loss_is_the_librarys():
    logits = torch.randn(40, 6, dtype=torch.float64)

    assert balance_of(logits, 2).item() == pytest.approx(theirs(logits, 2).item(), rel=1e-6)
    assert balance_of(torch.zeros(6, 6).fill_diagonal_(1e-6), 2).item() == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["mixtral", "olmoe"])
def test_gradients_are_those_of_scores_and_of_each_layers_balance(name: str):
    run = balanced(name)
    trainer = ReferenceTrainer(run, rounded=False)
    shape = run.batch.rows, run.model.sequence_length + 1
    tokens_BS = torch.randint(0, run.model.vocabulary, shape)
    tokens_BS[0, 3:] |= NO_TARGET
    whole = library_model(run.model, torch.float64)
    named = dict(named_parameters(trainer.flat.numbers, trainer.flat.blocks))
    parameters = dict(whole.named_parameters())
    with torch.no_grad():
        for key, parameter in named.items():
            parameters[key].copy_(parameter)

    trainer.add(tokens_BS, 0)

    ids_BS, targets = tokens_BS % NO_TARGET, int((tokens_BS[:, 1:] < NO_TARGET).sum())
    made = whole(ids_BS[:, :-1], output_router_logits=True)
    kept = (tokens_BS[:, 1:] < NO_TARGET).flatten()
    nats = cross_entropy(
        made.logits.flatten(0, 1)[kept], ids_BS[:, 1:].flatten()[kept], reduction="sum"
    )
    config = whole.config
    losses = [theirs(each, config.num_experts_per_tok) for each in made.router_logits]
    weight = config.router_aux_loss_coef * targets / len(losses)
    loss = (nats + weight * sum(losses)) * run.share_of_token
    plain = torch.autograd.grad(
        nats * run.share_of_token, list(parameters.values()), retain_graph=True
    )
    expected = torch.autograd.grad(loss, list(parameters.values()))
    sums = {tensor.name: tensor for tensor in trainer.flat.layout.parameters}
    found = torch.cat([trainer.flat.sum_N[sums[k].start : sums[k].stop] for k in sorted(sums)])
    by_name = dict(zip(parameters, expected, strict=True))
    without = dict(zip(parameters, plain, strict=True))
    flat = torch.cat([by_name[key].flatten() for key in sorted(sums)])
    other = torch.cat([without[key].flatten() for key in sorted(sums)])

    assert (found - flat).norm() <= 1e-6 * flat.norm()
    assert (other - flat).norm() >= 1e-5 * flat.norm(), "the loss of routers would be lost in it"


def test_stages_have_it_as_one_piece_has_it():
    assert check_stages(balanced()).problem == ""


def test_where_there_are_no_routers_it_is_refused():
    gpt = RunConfig(model=ModelConfig(router_loss=True))
    with pytest.raises(Unusable, match=r"is for mixtures of experts of hf:.* leave it out"):
        check_routers(gpt)

    llama = family_run("llama")
    llama = dataclasses.replace(llama, model=dataclasses.replace(llama.model, router_loss=True))
    with pytest.raises(Unusable, match="has no routers whose loss the library weighs"):
        check_stages(llama)

    with pytest.raises(Unusable, match="router_loss is for one device a server"):
        require_splittable(balanced(), 1)


def test_what_a_forward_left_that_failed_is_no_part_of_the_next():
    class Router(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1

    router = Router()
    routers = RouterLoss.of(router, Routers(Router, 0, 1.0, 1))
    logits = torch.randn(6, 4, requires_grad=True)

    def fails(x: torch.Tensor) -> torch.Tensor:
        router(x)
        raise MemoryError

    with pytest.raises(MemoryError):
        routers.run(1.0, fails, logits)
    made = routers.run(1.0, lambda x: routers.beside(router(x)), logits)
    (found,) = torch.autograd.grad(made, logits, torch.zeros_like(made))

    (expected,) = torch.autograd.grad(balance_of(logits, 1), logits)
    assert torch.equal(found, expected)
