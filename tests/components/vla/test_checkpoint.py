"""Published checkpoints: all 778 names and shapes, files of that layout at 1/16 of the width, and wrong files."""

import pytest
import torch
from safetensors.torch import save_file

from rl_lab.components.vla.checkpoint import expected_shapes, load_pi0, present_name
from rl_lab.components.vla.pi0 import Pi0
from rl_lab.components.vla.sizes import AttentionSizes, ExpertSizes, Pi0Sizes, VisionSizes
from rl_lab.core import CheckpointError

SIXTEENTH = Pi0Sizes(
    VisionSizes(width=72, mlp_dim=269, num_heads=8),
    AttentionSizes(head_dim=16),
    ExpertSizes(128, 1024),
    ExpertSizes(64, 256),
    vocabulary=16_072,
)

SHALLOW = Pi0Sizes(
    VisionSizes(width=18, mlp_dim=67, depth=2, num_heads=3),
    AttentionSizes(head_dim=4, depth=2),
    ExpertSizes(32, 256),
    ExpertSizes(16, 64),
    vocabulary=4018,
)


def published(scale=1, vision_depth=27, depth=18):
    """Return the names and shapes of `lerobot/pi0_base`, without its prefix, all widths divided by `scale`."""
    seen, words, act, vocabulary = 1152 // scale, 2048 // scale, 1024 // scale, 257_152 // scale
    keys, queries = 256 // scale, 2048 // scale
    root = "paligemma_with_expert."
    vision = root + "paligemma.model.vision_tower.vision_model."
    language = root + "paligemma.model.language_model."
    shapes = {
        vision + "embeddings.patch_embedding.weight": (seen, 3, 14, 14),
        vision + "embeddings.patch_embedding.bias": (seen,),
        vision + "embeddings.position_embedding.weight": (256, seen),
        vision + "post_layernorm.weight": (seen,),
        vision + "post_layernorm.bias": (seen,),
        root + "paligemma.model.multi_modal_projector.linear.weight": (words, seen),
        root + "paligemma.model.multi_modal_projector.linear.bias": (words,),
        language + "embed_tokens.weight": (vocabulary, words),
        language + "norm.weight": (words,),
        root + "paligemma.lm_head.weight": (vocabulary, words),
        root + "gemma_expert.model.norm.weight": (act,),
        root + "gemma_expert.lm_head.weight": (vocabulary, act),
        "state_proj.weight": (act, 32),
        "action_in_proj.weight": (act, 32),
        "action_time_mlp_in.weight": (act, 2 * act),
        "action_time_mlp_out.weight": (act, act),
        "action_out_proj.weight": (32, act),
        "action_out_proj.bias": (32,),
    }
    for name in ("state_proj", "action_in_proj", "action_time_mlp_in", "action_time_mlp_out"):
        shapes[f"{name}.bias"] = (act,)
    hidden = 4304 // scale
    for layer in range(vision_depth):
        at = f"{vision}encoder.layers.{layer}."
        for part in ("layer_norm1", "layer_norm2", *(f"self_attn.{p}_proj" for p in ("q", "k", "v", "out"))):
            shapes[f"{at}{part}.weight"] = (seen,) if "norm" in part else (seen, seen)
            shapes[f"{at}{part}.bias"] = (seen,)
        shapes |= {f"{at}mlp.fc1.weight": (hidden, seen), f"{at}mlp.fc1.bias": (hidden,)}
        shapes |= {f"{at}mlp.fc2.weight": (seen, hidden), f"{at}mlp.fc2.bias": (seen,)}
    for stack, width, inner in ((language, words, 16_384), (root + "gemma_expert.model.", act, 4096)):
        inner //= scale
        for layer in range(depth):
            at = f"{stack}layers.{layer}."
            shapes |= {f"{at}{norm}_layernorm.weight": (width,) for norm in ("input", "post_attention")}
            shapes |= {f"{at}self_attn.{p}_proj.weight": (keys, width) for p in "kv"}
            shapes |= {
                f"{at}self_attn.q_proj.weight": (queries, width),
                f"{at}self_attn.o_proj.weight": (width, queries),
            }
            shapes |= {f"{at}mlp.{p}_proj.weight": (inner, width) for p in ("gate", "up")}
            shapes[f"{at}mlp.down_proj.weight"] = (width, inner)
    return shapes


TIED = (
    "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight",
    "paligemma_with_expert.paligemma.lm_head.weight",
)


def random_weights(shapes):
    """Return random weights of a layout; both names of the words' embeddings have the same."""
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    return {**made, TIED[1]: made[TIED[0]].clone()}


@pytest.fixture(scope="module")
def tensors():
    return random_weights(published(64, 2, 2))


def older(name):
    """Return the name that the first LeRobot's files (and Hi-ORS) have for a tensor."""
    name = name.replace("paligemma.lm_head.", "paligemma.language_model.lm_head.")
    name = name.replace("paligemma.model.language_model.", "paligemma.language_model.model.")
    for part in ("vision_tower", "multi_modal_projector"):
        name = name.replace(f"paligemma.model.{part}.", f"paligemma.{part}.")
    return "model." + name


def test_names_and_shapes_are_all_778_of_the_published_file():
    with torch.device("meta"):
        model = Pi0(Pi0Sizes())
    wanted = published()
    assert len(wanted) == 778
    assert expected_shapes(model) == wanted


@pytest.mark.parametrize("layout", ["openpi", "lerobot", "older", "tied", "only_head", "directory", "shards"])
def test_every_weight_comes_from_the_file(layout, tensors, tmp_path):
    rename = {"lerobot": lambda name: f"model.{name}", "older": older}.get(layout, lambda name: name)
    left_out = {"tied": TIED[1], "only_head": TIED[0]}.get(layout)
    stored = {rename(name): tensor for name, tensor in tensors.items() if name != left_out}
    path = tmp_path / "model.safetensors"
    if layout == "shards":
        halves = [dict(list(stored.items())[part::2]) for part in (0, 1)]
        for number, half in enumerate(halves):
            save_file(half, tmp_path / f"model-{number + 1:05d}-of-00002.safetensors")
    else:
        save_file(stored, path)
    model = load_pi0(tmp_path if layout in ("directory", "shards") else path, SHALLOW)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, tensors[name].float()), name
    assert len(list(model.parameters())) == len(tensors) - 2  # two heads are not needed


def test_a_whole_file_of_a_sixteenth_of_the_width(tmp_path):
    made = random_weights(published(16))
    assert len(made) == 778
    save_file({f"model.{name}": tensor for name, tensor in made.items()}, tmp_path / "model.safetensors")
    model = load_pi0(tmp_path, SIXTEENTH, torch.bfloat16)
    loaded = dict(model.named_parameters())
    assert len(loaded) == 776
    assert all(torch.equal(parameter, made[name]) for name, parameter in loaded.items())


def test_names_of_the_first_files():
    assert present_name("model.time_mlp_in.weight") == "action_time_mlp_in.weight"
    assert present_name("model.action_time_mlp_in.weight") == "action_time_mlp_in.weight"
    assert present_name("paligemma_with_expert.gemma_expert.model.norm.weight").startswith(
        "paligemma_with_expert.gemma"
    )


def broken(tensors, change):
    state = "state_proj.weight"
    if change == "missing":
        return {name: tensor for name, tensor in tensors.items() if name != state}
    if change == "no_words":
        return {name: tensor for name, tensor in tensors.items() if name not in TIED}
    if change == "unexpected":
        return {**tensors, "somebody.weight": torch.zeros(2)}
    if change == "shape":
        return {**tensors, state: torch.zeros(16, 31)}
    if change == "head_shape":
        return {**tensors, "paligemma_with_expert.gemma_expert.lm_head.weight": torch.zeros(3, 16)}
    if change == "twice":
        return {**tensors, "model." + state: tensors[state].clone()}
    return {**tensors, state: torch.full((16, 32), float("nan"))}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"does not fit these sizes: 1 tensors missing \(state_proj.weight\)$"),
        (
            "no_words",
            r"1 tensors missing \(paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight\)$",
        ),
        ("unexpected", r"1 tensors unexpected \(somebody.weight\)$"),
        ("shape", r"1 tensors of another shape \(state_proj.weight is \[16, 31\], not \[16, 32\]\)$"),
        ("head_shape", r"lm_head.weight is \[3, 16\], not \[4018, 16\]\)$"),
        ("twice", r"holds state_proj.weight twice$"),
        ("nan", r"state_proj.weight holds numbers that are not finite$"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line_and_nothing_is_loaded(change, message, tensors, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(broken(tensors, change), path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_pi0(path, SHALLOW)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_another_size_names_three_and_counts_the_rest(tensors, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"778 tensors of another shape|tensors of another shape \(.* and \d+ more\)$"
    ):
        load_pi0(tmp_path, Pi0Sizes())


def test_what_is_no_checkpoint_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is neither such a file nor a model.safetensors in it$"):
        load_pi0(tmp_path / "nothing", SHALLOW)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")  # a pickle
    with pytest.raises(CheckpointError, match=r"cannot be read as safetensors"):
        load_pi0(tmp_path, SHALLOW)
