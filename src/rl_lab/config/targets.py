"""Checks every `_target_` of a config against the signature it names, and builds it. The keys are the arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rl_lab.config.allow_list import TARGET_KEYS, AllowList
from rl_lab.config.signatures import Argument, Signature, signature_of
from rl_lab.config.typed_values import coerce, is_plain
from rl_lab.core.errors import ConfigError, unknown_name


class Pending(str):
    """The text of an interpolation that cannot be resolved before the environment's spec is known."""


Supply = Callable[[str], Mapping[str, Any]]  # path of a node -> what the lab gives it, where it takes that


def _nothing(path: str) -> Mapping[str, Any]:
    return {}


class Targets:
    """Reads nodes such as `{_target_: torch.nn.Linear, in_features: 4, out_features: 2}`."""

    def __init__(self, allow_list: AllowList) -> None:
        self.allow_list = allow_list

    def check(
        self,
        path: str,
        node: Any,
        *,
        supplied: tuple[str, ...] = (),
        inherited: tuple[str, ...] = (),
        base: type | None = None,
    ) -> dict[str, Any]:
        """Return the node with its values as the signature's types ask for them.

        `supplied` are given by the lab, `inherited` also to the nodes within this one.
        """
        target = self.load(path, node, base)
        partial = node.get("_partial_", False)
        if not isinstance(partial, bool):
            raise ConfigError(f"{path}._partial_: must be true or false, not {partial!r}")
        given = {key: value for key, value in node.items() if key not in TARGET_KEYS}
        if clash := sorted(given.keys() & set(supplied)):
            raise ConfigError(f"{path}.{clash[0]}: the lab gives it itself")
        signature = signature_of(target)
        checked = self._check_arguments(path, given, signature, _name(target), inherited)
        self._reject_missing(path, given, signature, (*supplied, *inherited), partial)
        return {key: node[key] for key in TARGET_KEYS if key in node} | checked

    def load(self, path: str, node: Any, base: type | None = None) -> Callable[..., Any]:
        """Return the class or function that a node names; with `base`, only a subclass of it."""
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise ConfigError(f"{path}: missing _target_ (a dotted name such as rl_lab.components.mlp.MLP)")
        target = self.allow_list.load(f"{path}._target_", node["_target_"])
        if base is not None and not (inspect.isclass(target) and issubclass(target, base)):
            raise ConfigError(f"{path}._target_: {node['_target_']!r} is not a subclass of {base.__name__}")
        return target

    def _check_arguments(
        self, path: str, given: Mapping[str, Any], signature: Signature, owner: str, inherited: tuple[str, ...]
    ) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        for key, value in given.items():
            argument = signature.arguments.get(key)
            if argument is None and not signature.takes_any:
                names = [name for name in signature.arguments if name != "self"]
                raise ConfigError(f"{path}: " + unknown_name(f"argument of {owner}", key, names))
            checked[key] = self._check_value(f"{path}.{key}", value, argument, inherited)
        return checked

    def _check_value(self, path: str, value: Any, argument: Argument | None, inherited: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping) and "_target_" in value:
            return self.check(path, value, inherited=inherited)
        if value is not None and argument is not None and argument.dataclass_type is not None:
            return self._check_dataclass(path, value, argument.dataclass_type, inherited)
        if _holds_target(value):
            return self._check_nested(path, value, inherited)
        if argument is None or argument.annotation is inspect.Parameter.empty or _holds_pending(value):
            return value
        if value is None and argument.needs_object:
            raise ConfigError(f"{path}: must be a {argument.annotation.__name__}, not None")
        return coerce(path, value, argument.annotation)

    def _check_dataclass(self, path: str, value: Any, kind: type, inherited: tuple[str, ...]) -> dict[str, Any]:
        signature = signature_of(kind)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: must be a block with the keys {', '.join(signature.arguments)}, not {value!r}")
        self._reject_missing(path, value, signature, (), False)
        return self._check_arguments(path, value, signature, kind.__name__, inherited)

    def _check_nested(self, path: str, value: Any, inherited: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            return {key: self._check_value(f"{path}.{key}", part, None, inherited) for key, part in value.items()}
        return [self._check_value(f"{path}.{index}", part, None, inherited) for index, part in enumerate(value)]

    def _reject_missing(
        self, path: str, given: Mapping[str, Any], signature: Signature, supplied: tuple[str, ...], partial: bool
    ) -> None:
        for argument in signature.arguments.values():
            if argument.is_required and not partial and argument.name not in given and argument.name not in supplied:
                raise ConfigError(f"{path}.{argument.name}: missing")

    def instantiate(self, path: str, node: Mapping[str, Any], inherited: Supply = _nothing, **supplied: Any) -> Any:
        """Build what a checked node names; `_partial_: true` gives a function that waits for the rest.

        The lab's own arguments reach those who take them and whose YAML does not give them: `supplied` this node,
        `inherited` the nodes within it too, each by its path.
        """
        target = self.load(path, node)
        signature = signature_of(target)
        arguments = {
            key: self._build_value(f"{path}.{key}", value, inherited, signature.arguments.get(key))
            for key, value in node.items()
            if key not in TARGET_KEYS
        }
        offered = {**supplied, **inherited(path)}
        accepted = {key: value for key, value in offered.items() if key in signature.arguments or signature.takes_any}
        if node.get("_partial_", False):
            return functools.partial(target, **accepted | arguments)
        try:
            return target(**accepted | arguments)
        except ConfigError as error:  # most know their arguments, and not where the config says them
            if f"{path}." in str(error):
                raise
            raise ConfigError(f"{path}: {error}") from error

    def _build_value(self, path: str, value: Any, inherited: Supply, argument: Argument | None = None) -> Any:
        if isinstance(value, Mapping) and "_target_" in value:
            return self.instantiate(path, value, inherited)
        if isinstance(value, Mapping):
            kind = None if argument is None else argument.dataclass_type
            fields = signature_of(kind).arguments if kind else dict.fromkeys(value, argument)
            built = {
                key: self._build_value(f"{path}.{key}", part, inherited, fields[key]) for key, part in value.items()
            }
            return kind(**built) if kind else built
        if isinstance(value, list | tuple):
            parts = enumerate(value)
            return type(value)(self._build_value(f"{path}.{i}", part, inherited, argument) for i, part in parts)
        wants_object = argument is None or not is_plain(argument.annotation)  # a Callable, say: `module:function`
        return self.allow_list.resolve_reference(path, value) if isinstance(value, str) and wants_object else value


def _name(target: Callable[..., Any]) -> str:
    return target.__qualname__


def _holds_target(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "_target_" in value or any(_holds_target(part) for part in value.values())
    return isinstance(value, list | tuple) and any(_holds_target(part) for part in value)


def _holds_pending(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_pending(part) for part in value.values())
    return isinstance(value, Pending) or (isinstance(value, list | tuple) and any(_holds_pending(v) for v in value))
