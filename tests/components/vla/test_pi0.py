"""The network of pi0 against one that reads token by token, and its sizes against the published ones."""

import math

import pytest
import torch

from rl_lab.components.vla.pi0 import Pi0, level_waves, suffix_mask
from rl_lab.components.vla.sizes import AttentionSizes, Pi0Sizes, VisionSizes
from rl_lab.components.vla.vision import VisionModel, fitted
from rl_lab.core import ConfigError
from tests.components.vla.small import SIZES, VISION, shaken

L = 3  # actions of a chunk


def network(sizes=SIZES):
    torch.manual_seed(0)
    return shaken(Pi0(sizes)).double()


def inputs(batch=2, words=4):
    torch.manual_seed(1)
    pictures = [torch.rand(batch, 3, 8, 8).double() * 2 - 1 for _ in range(2)]
    state, noisy = torch.randn(batch, 5).double(), torch.randn(batch, L, 4).double()
    return pictures, torch.randint(0, 30, (batch, words)), state, noisy, torch.rand(batch).double()


def norm(x, weight):
    return x / math.sqrt(float((x * x).mean()) + 1e-6) * (1 + weight)


def turned(vector, position):
    """Return a head's numbers turned by its position, pair by pair."""
    half, out = len(vector) // 2, vector.clone()
    for i in range(half):
        angle = position * 10_000.0 ** (-i / half)
        a, b = float(vector[i]), float(vector[half + i])
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[half + i] = b * math.cos(angle) + a * math.sin(angle)
    return out


def token_by_token(model, tokens, is_valid, starts_block):
    """Return the last tokens of one row: all in one sequence, each with the weights of its own expert."""
    sizes = model.sizes.attention
    experts = [model.backbone.language_model, model.expert]
    owner = [0 if len(token) == model.sizes.backbone.width else 1 for token in tokens]
    blocks = torch.tensor(starts_block).cumsum(0).tolist()
    positions = (torch.tensor(is_valid).long().cumsum(0) - 1).tolist()
    for number in range(sizes.depth):
        layers = [expert.each_layer()[number] for expert in experts]
        rows = []
        for token, mine, place in zip(tokens, owner, positions, strict=True):
            layer = layers[mine]
            normed, own = norm(token, layer.input_layernorm.weight), layer.self_attn
            query, key, value = (
                (projection.weight @ normed).view(-1, sizes.head_dim)
                for projection in (own.q_proj, own.k_proj, own.v_proj)
            )
            rows.append(([turned(q, place) for q in query], [turned(k, place) for k in key], value))
        after = []
        for i, token in enumerate(tokens):
            sees = [j for j in range(len(tokens)) if blocks[j] <= blocks[i] and is_valid[j] and is_valid[i]] or [i]
            read = []
            for head in range(sizes.num_heads):
                group = head * sizes.num_key_heads // sizes.num_heads
                scores = [float(rows[i][0][head] @ rows[j][1][group]) / math.sqrt(sizes.head_dim) for j in sees]
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                read.append(sum(w * rows[j][2][group] for w, j in zip(weights, sees, strict=True)))
            layer = layers[owner[i]]
            token = token + layer.self_attn.o_proj.weight @ torch.cat(read)
            normed, mlp = norm(token, layer.post_attention_layernorm.weight), layer.mlp
            gate = torch.nn.functional.gelu(mlp.gate_proj.weight @ normed, approximate="tanh")
            after.append(token + mlp.down_proj.weight @ (gate * (mlp.up_proj.weight @ normed)))
        tokens = after
    return tokens


@torch.no_grad()
def test_two_experts_with_a_cache_are_one_sequence_read_token_by_token():
    model, (pictures, words, state, noisy, level) = network(), inputs()
    seen = model.embed_prefix(pictures, words)
    is_valid = torch.ones(seen.shape[:2], dtype=torch.bool)
    is_valid[0, 4:8] = False  # a camera that is not there
    is_valid[1, -2:] = False  # a prompt that is filled up
    found = model.velocity(model.read_prefix(seen, is_valid), state, noisy, level)
    suffix = model.embed_suffix(state, noisy, level)
    for row in range(2):
        tokens = [*seen[row], *suffix[row]]
        starts = [0] * seen.shape[1] + [1, 1] + [0] * (L - 1)
        valid = [*is_valid[row].tolist(), *[True] * (1 + L)]
        last = token_by_token(model, tokens, valid, starts)[-L:]
        out = torch.stack([norm(token, model.expert.norm.weight) for token in last])
        wanted = out @ model.action_out_proj.weight.T + model.action_out_proj.bias
        torch.testing.assert_close(found[row], wanted, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_what_is_not_valid_is_as_if_it_were_not_there():
    model, (pictures, words, state, noisy, level) = network(), inputs()
    both = model.embed_prefix([*pictures, torch.full_like(pictures[0], -1.0)], words)
    is_valid = torch.ones(both.shape[:2], dtype=torch.bool)
    is_valid[:, 8:12] = False
    masked = model.velocity(model.read_prefix(both, is_valid), state, noisy, level)
    two = model.embed_prefix(pictures, words)
    without = model.read_prefix(two, torch.ones(two.shape[:2], dtype=torch.bool))
    torch.testing.assert_close(masked, model.velocity(without, state, noisy, level))


def test_the_mask_of_the_suffix():
    mask = suffix_mask(torch.tensor([[True, False]]), 2)[0].int().tolist()
    assert mask == [[1, 0, 1, 0, 0], [1, 0, 1, 1, 1], [1, 0, 1, 1, 1]]  # state, action, action


@torch.no_grad()
def test_tokens_of_the_suffix_by_hand():
    model, (_, _, state, noisy, level) = network(), inputs()
    tokens = model.embed_suffix(state, noisy, level)
    assert tokens.shape == (2, 1 + L, 10)
    first = model.state_proj.weight @ state[1] + model.state_proj.bias
    torch.testing.assert_close(tokens[1, 0], first)
    action = model.action_in_proj.weight @ noisy[1, 2] + model.action_in_proj.bias
    periods = [0.004 * 1000.0 ** (i / 4) for i in range(5)]
    waves = [wave(2 * math.pi * float(level[1]) / period) for wave in (math.sin, math.cos) for period in periods]
    hidden = model.action_time_mlp_in.weight @ torch.cat([action, torch.tensor(waves).double()])
    hidden = hidden + model.action_time_mlp_in.bias
    hidden = hidden / (1 + torch.exp(-hidden))
    wanted = model.action_time_mlp_out.weight @ hidden + model.action_time_mlp_out.bias
    torch.testing.assert_close(tokens[1, 3], wanted, rtol=1e-5, atol=1e-5)


def test_waves_of_the_longest_and_the_shortest_period():
    waves = level_waves(torch.tensor([0.0, 1.0, 0.002]), 4)
    wanted = [
        [0.0, 0.0, 1.0, 1.0],
        [0.0, 1.0, 1.0, 0.0],
        [0.0, math.sin(math.pi / 1000), -1.0, math.cos(math.pi / 1000)],
    ]
    assert waves.numpy() == pytest.approx(torch.tensor(wanted).numpy(), abs=1e-5)


@torch.no_grad()
def test_words_are_scaled_and_pictures_are_not():
    model, (pictures, words, *_) = network(), inputs()
    tokens = model.embed_prefix(pictures, words)
    assert tokens.shape == (2, 4 + 4 + 4, 16)
    torch.testing.assert_close(tokens[0, 8], 4.0 * model.backbone.language_model.embed_tokens.weight[words[0, 0]])
    seen = model.backbone.vision_tower.vision_model(pictures[1])
    torch.testing.assert_close(tokens[:, 4:8], model.backbone.multi_modal_projector.linear(seen))


@torch.no_grad()
def test_pictures_against_torchs_own_transformer():
    torch.manual_seed(0)
    model = shaken(VisionModel(VISION))
    pictures = torch.rand(2, 3, 8, 8)
    patches = pictures.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    conv = model.embeddings.patch_embedding
    x = patches @ conv.weight.flatten(1).T + conv.bias + model.embeddings.position_embedding.weight
    for layer in model.encoder.layers:
        other = torch.nn.TransformerEncoderLayer(
            12, 3, 20, 0.0, lambda y: torch.nn.functional.gelu(y, approximate="tanh"), 1e-6, True, True
        )
        own = layer.self_attn
        parts = (own.q_proj, own.k_proj, own.v_proj)
        other.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        other.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        pairs = [(other.self_attn.out_proj, own.out_proj), (other.linear1, layer.mlp.fc1)]
        pairs += [(other.linear2, layer.mlp.fc2), (other.norm1, layer.layer_norm1), (other.norm2, layer.layer_norm2)]
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
        x = other(x)
    mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    wanted = (x - mean) / (var + 1e-6).sqrt() * model.post_layernorm.weight + model.post_layernorm.bias
    torch.testing.assert_close(model(pictures), wanted, rtol=1e-4, atol=1e-5)


def test_pictures_keep_their_shape_and_lie_in_the_middle():
    wide = torch.full((1, 3, 4, 8), 255, dtype=torch.uint8)
    found = fitted(wide, 8)
    assert found.shape == (1, 3, 8, 8)
    assert found[0, 0, :, 0].tolist() == [-1, -1, 1, 1, 1, 1, -1, -1]
    same = torch.arange(0, 192, dtype=torch.uint8).view(1, 3, 8, 8)
    assert fitted(same, 8).flatten()[:3].tolist() == pytest.approx([-1.0, 1 / 127.5 - 1, 2 / 127.5 - 1])
    assert torch.equal(fitted(same[:, :1], 8), fitted(same[:, :1].expand(-1, 3, -1, -1), 8))
    assert fitted(wide, 4).amax() == pytest.approx(1.0)
    assert fitted(wide, 4)[0, 0, 0].tolist() == [-1.0] * 4


PUBLISHED = {  # counted in LeRobot 0.6.1's PI0Pytorch
    "backbone.vision_tower": 412_442_352,
    "backbone.multi_modal_projector": 2_361_344,
    "backbone.language_model.embed_tokens": 526_647_296,
    "backbone.language_model": 1_981_884_416 + 526_647_296,
    "expert": 311_464_960,
}


def test_sizes_are_the_published_ones_and_take_no_memory():
    with torch.device("meta"):
        model = Pi0(Pi0Sizes())

    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    for path, wanted in PUBLISHED.items():
        module = model
        for name in path.split("."):
            module = getattr(module, name)
        assert count(module) == wanted, path
    assert count(model) - count(model.paligemma_with_expert) == 3_248_160
    assert count(model) == 3_238_048_528
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VisionSizes(width=10, num_heads=3), r"^sizes.vision: needs num_heads that divides width"),
        (lambda: VisionSizes(picture_size=8), r"^sizes.vision: needs .* picture_size >= patch_size"),
        (lambda: AttentionSizes(num_heads=3, num_key_heads=2), r"^sizes.attention: needs num_key_heads that divides"),
        (lambda: AttentionSizes(head_dim=5), r"^sizes.attention: .* an even head_dim"),
    ],
)
def test_sizes_that_do_not_go_together_are_one_line(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
