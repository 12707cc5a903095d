"""Weights of published pi0 checkpoints: every name and shape is checked before anything is read, or nothing is loaded.

A checkpoint is a safetensors file (`model.safetensors` of LeRobot, or one that openpi converted), which is mapped and
read tensor by tensor. Nothing is unpickled, and no weight stays random without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rl_lab.components.vla.pi0 import Pi0
from rl_lab.components.vla.sizes import Pi0Sizes
from rl_lab.core import CheckpointError

Shape = tuple[int, ...]

WORDS = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
WORDS_AGAIN = "paligemma_with_expert.paligemma.lm_head.weight"  # tied: either may be the only copy
UNUSED = "paligemma_with_expert.gemma_expert.lm_head.weight"  # in the files, and read by nobody
OLDER_NAMES = (  # of files before transformers 4.52, and of the first LeRobot
    (r"^model\.(?=paligemma_with_expert\.|state_proj\.|action_|time_mlp_)", ""),
    (r"^time_mlp_", "action_time_mlp_"),
    (r"\.paligemma\.language_model\.lm_head\.", ".paligemma.lm_head."),
    (r"\.paligemma\.language_model\.model\.", ".paligemma.model.language_model."),
    (r"\.paligemma\.(?=vision_tower\.|multi_modal_projector\.)", ".paligemma.model."),
)
NAMED = 3  # tensors that an error names


def load_pi0(path: str | Path, sizes: Pi0Sizes, dtype: torch.dtype = torch.float32) -> Pi0:
    """Return the network with the weights of a checkpoint; raises CheckpointError when anything does not fit."""
    with torch.device("meta"):
        model = Pi0(sizes)
    with _Files(path) as files:
        _reject_differences(str(path), expected_shapes(model), files.shapes)
        for name in model.state_dict():
            tensor = files.read(name if name in files.shapes else WORDS_AGAIN).to(dtype)
            if not bool(tensor.isfinite().all()):
                raise CheckpointError(f"{path}: {name} holds numbers that are not finite")
            _place(model, name, tensor)
    return model


def expected_shapes(model: Pi0) -> dict[str, Shape]:
    """Return the names and shapes of a whole checkpoint, 778 for the published depths; see `load_pi0` for fewer."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    words, width = model.sizes.vocabulary, model.sizes.expert.width
    return {**shapes, WORDS_AGAIN: shapes[WORDS], UNUSED: (words, width)}


def present_name(name: str) -> str:
    """Return the present name of a tensor that a file may hold under an older one."""
    for older, present in OLDER_NAMES:
        name = re.sub(older, present, name)
    return name


class _Files(ExitStack):
    """The mapped files of a checkpoint as one: names as they are now, shapes, and tensors when they are asked for."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = path
        self._places: dict[str, tuple[safe_open, str]] = {}
        self.shapes: dict[str, Shape] = {}
        try:
            for file in _paths(Path(path)):
                opened = self.enter_context(safe_open(file, framework="pt", device="cpu"))
                for name in opened.keys():  # noqa: SIM118  (not a dict)
                    self._add(name, opened)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read as safetensors ({error})") from error

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        opened, stored = self._places[name]
        return opened.get_tensor(stored)

    def _add(self, stored: str, opened: safe_open) -> None:
        name = present_name(stored)
        if name in self.shapes:
            raise CheckpointError(f"{self._path}: holds {name} twice")
        self.shapes[name] = tuple(opened.get_slice(stored).get_shape())
        self._places[name] = (opened, stored)


def _paths(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = (
        [path / "model.safetensors"]
        if (path / "model.safetensors").is_file()
        else sorted(path.glob("model-*.safetensors"))
    )
    if not found:
        raise CheckpointError(f"{path}: there is neither such a file nor a model.safetensors in it")
    return found


def _reject_differences(path: str, here: Mapping[str, Shape], there: Mapping[str, Shape]) -> None:
    needed = {name for name in here if name not in (UNUSED, WORDS_AGAIN, WORDS)}
    missing = sorted(needed - there.keys())
    if not {WORDS, WORDS_AGAIN} & there.keys():
        missing.append(WORDS)
    unexpected = sorted(there.keys() - here.keys())
    common = sorted(here.keys() & there.keys())
    other = [f"{name} is {list(there[name])}, not {list(here[name])}" for name in common if here[name] != there[name]]
    found = [*_told("missing", missing), *_told("unexpected", unexpected), *_told("of another shape", other)]
    if found:
        raise CheckpointError(f"{path}: does not fit these sizes: {'; '.join(found)}")


def _told(what: str, names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"{len(names)} tensors {what} ({', '.join(names[:NAMED])}{more})"


def _place(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a tensor where a parameter on the meta device is."""
    owner, _, leaf = name.rpartition(".")
    model.get_submodule(owner).register_parameter(leaf, nn.Parameter(tensor))
