"""Which weights learn: LoRA changes nothing at first, the rest stays as it is, and products become plain weights."""

import copy

import pytest
import torch

from rl_lab.components.vla.pi0 import Pi0
from rl_lab.components.vla.tuning import LoRALinear, Tuning, merged, tune
from tests.components.vla.small import SIZES, shaken

L = 3


def network():
    torch.manual_seed(0)
    return shaken(Pi0(SIZES))


def velocity(model):
    torch.manual_seed(1)
    tokens = model.embed_prefix([torch.rand(2, 3, 8, 8)], torch.randint(0, 30, (2, 4)))
    prefix = model.read_prefix(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))
    return model.velocity(prefix, torch.randn(2, 5), torch.randn(2, L, 4), torch.rand(2))


def learning(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_lora_is_the_base_at_first_and_a_low_rank_change_later():
    base = network()
    wanted = velocity(base)
    model = copy.deepcopy(base)
    tune(model, Tuning("lora", rank=2, alpha=6.0))
    assert torch.equal(velocity(model), wanted)
    layer = model.expert.each_layer()[1].mlp.down_proj
    assert isinstance(layer, LoRALinear)
    shaken(layer)
    change = 3.0 * layer.lora_b @ layer.lora_a
    assert torch.linalg.matrix_rank(change) == 2
    x = torch.randn(5, 14)
    torch.testing.assert_close(layer(x), x @ (layer.weight + change).T)
    assert not torch.allclose(velocity(model), wanted)


def test_merged_weights_are_a_base_of_the_same_names_that_does_the_same():
    model = network()
    names = set(model.state_dict())
    tune(model, Tuning("lora", rank=2))
    for name, parameter in model.named_parameters():
        if "lora" in name:
            shaken(torch.nn.ParameterList([parameter]))
    plain = network()
    weights = merged(model)
    assert set(weights) == names
    plain.load_state_dict(weights)
    torch.testing.assert_close(velocity(plain), velocity(model), rtol=1e-4, atol=1e-5)


HEADS = {
    f"{name}.{kind}" for name in ("state_proj", "action_in_proj", "action_out_proj") for kind in ("weight", "bias")
}
HEADS |= {f"action_time_mlp_{name}.{kind}" for name in ("in", "out") for kind in ("weight", "bias")}


@pytest.mark.parametrize("train", ["all", "expert", "lora"])
def test_all_that_learns_gets_a_gradient_and_nothing_else_does(train):
    model = network()
    tune(model, Tuning(train, rank=2))
    learns = learning(model)
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(velocity(model).square().sum(), [parameters[name] for name in learns])
    assert len(found) == len(learns)  # none is unused
    assert learns >= HEADS
    expert = {name for name in parameters if ".gemma_expert." in name and "lora" not in name}
    if train == "expert":
        assert learns == HEADS | expert
    if train == "lora":
        assert learns - HEADS == {
            name for name in parameters if "lora" in name and "language_model.layers.2" not in name
        } | {
            name
            for name in parameters
            if "lora" in name and "layers.2.self_attn" in name and name.split(".")[-2][0] in "kv"
        } | {name for name in parameters if "lora" in name and ".gemma_expert." in name}
    if train == "all":
        silent = parameters.keys() - learns
        assert (
            len(silent) == 7
        )  # two projections, three of the MLP and two norms: after the last layer's keys and values
        assert all("language_model.layers.2." in name or "language_model.norm" in name for name in silent)


def test_what_does_not_learn_may_be_bfloat16():
    model = network()
    tune(model, Tuning("lora", rank=2, frozen_dtype="bfloat16"))
    kinds = {parameter.requires_grad: parameter.dtype for parameter in model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
