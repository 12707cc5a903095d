"""What a config may name: nothing outside the allowed packages is imported, looked up or called.

Checked on the text first, so that a hostile name imports nothing, and again on the object that was found, so that a
name cannot walk through an allowed module into another package.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.core.references import Reference, split_reference

# The rooms whose classes a config builds; those that write files or start runs are not among them.
ALLOWED = (
    "rl_lab.environments",
    "rl_lab.workflows",
    "rl_lab.components",
    "rl_lab.buffers",
    "rl_lab.robots",
    "rl_lab.human",
    "rl_lab.ops",
    "torch.nn",
    "torch.optim",
)
# Within these rooms, what works for their classes: it imports packages, writes files or starts processes.
INTERNAL = (
    "rl_lab.buffers.datasets",
    "rl_lab.buffers.storage",
    "rl_lab.environments.checking",
    "rl_lab.environments.exact",
    "rl_lab.environments.hosting",
    "rl_lab.environments.racing",
)
FUNCTIONS = ("rl_lab.ops",)  # of the lab's own rooms, where a config may call functions: mathematics and nothing else
_OWN = "rl_lab"
TARGET_KEYS = ("_target_", "_partial_")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class AllowList:
    """The packages of the lab and of torch, and those the user declared on the command line."""

    def __init__(self, plugins: Iterable[str] = ()) -> None:
        self.prefixes = (*ALLOWED, *plugins)

    def allows(self, module: str | None) -> bool:
        """Return whether a module's name lies under an allowed package."""
        return module is not None and _lies_in(module, self.prefixes) and not _lies_in(module, INTERNAL)

    def check_name(self, path: str, name: object) -> str:
        """Return `name` when it is a dotted name under an allowed package; nothing is imported."""
        if not isinstance(name, str) or not _DOTTED.fullmatch(name):
            raise ConfigError(f"{path}: {name!r} is not a dotted name such as rl_lab.components.mlp.MLP")
        module = name.rpartition(".")[0]
        _reject_internal(path, module)
        if not self.allows(module):
            choices = ", ".join(f"{prefix}.*" for prefix in self.prefixes)
            raise ConfigError(f"{path}: {name!r} is not allowed (choices: {choices}; declare your own with --plugin)")
        return name

    def load(self, path: str, name: object) -> Callable[..., Any]:
        """Return the class or function of this name."""
        module_name, _, attribute = self.check_name(path, name).rpartition(".")
        module = self._import(path, module_name)
        public = [key for key, value in vars(module).items() if self._is_buildable(value) and not key.startswith("_")]
        found = vars(module).get(attribute)
        if found is None:
            raise ConfigError(f"{path}: " + unknown_name(f"name in {module_name}", attribute, public))
        if not self._is_buildable(found):
            raise ConfigError(f"{path}: {name!r} is not a class or function that a config may name")
        return found

    def _is_buildable(self, value: Any) -> bool:
        if not (inspect.isclass(value) or inspect.isfunction(value)) or not self.allows(value.__module__):
            return False
        if not _lies_in(value.__module__, (_OWN,)):
            return True
        is_kind = inspect.isclass(value) or _lies_in(value.__module__, FUNCTIONS)
        return is_kind and not value.__name__.startswith("_")

    def _import(self, path: str, name: str) -> Any:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or name
            if name == missing or name.startswith(f"{missing}."):
                parent, _, leaf = missing.rpartition(".")
                raise ConfigError(f"{path}: " + unknown_name(f"module in {parent}", leaf, _siblings(parent))) from error
            raise ConfigError(f"{path}: {name} needs the package {missing!r}, which is not installed") from error

    def check_tree(self, tree: Any, path: str = "") -> None:
        """Check every `_target_`, every `module:function` and every underscore key, however deep.

        Nothing is imported but the lab's own modules.
        """
        for where, key, value in _walk(tree, path):
            if key == "_target_":
                self.check_name(where, value)
            elif isinstance(key, str) and key.startswith("_") and key.endswith("_") and key not in TARGET_KEYS:
                raise ConfigError(f"{where}: " + unknown_name("key", key, TARGET_KEYS))
            elif isinstance(value, str) and (reference := split_reference(value)) is not None:
                self._check_reference(where, reference)

    def _check_reference(self, path: str, reference: Reference) -> None:
        """Refuse `module:anything` unless the module is allowed: whoever resolves it imports the module."""
        module, name = reference
        _reject_internal(path, module)
        if not self.allows(module):
            choices = ", ".join(self.prefixes)
            raise ConfigError(f"{path}: module {module!r} is not allowed (choices: {choices}; your own with --plugin)")
        if _lies_in(module, (_OWN,)):  # an environment's name is looked up elsewhere, where no kind is asked for
            self.load(path, f"{module}.{name}")

    def resolve_reference(self, path: str, text: str) -> Any:
        """Return the function that `module:function` names, or `text` itself when it is not of that form."""
        reference = split_reference(text)
        return text if reference is None else self.load(path, ".".join(reference))


def _reject_internal(path: str, module: str) -> None:
    if _lies_in(module, INTERNAL):
        raise ConfigError(f"{path}: {module!r} is not allowed: it works for the lab's own classes, not for configs")


def _lies_in(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _walk(tree: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted path, key, value) of every entry of nested dicts and lists."""
    entries = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for key, value in entries:
        where = f"{path}.{key}" if path else str(key)
        yield where, key, value
        yield from _walk(value, where)


def _siblings(package: str) -> list[str]:
    """Return the modules of a package by its files, without importing them."""
    folders = vars(sys.modules[package]).get("__path__", []) if package in sys.modules else []
    return sorted(file.stem for folder in folders for file in Path(folder).glob("*.py") if file.stem != "__init__")


def load_plugins(declared: Iterable[str] = ()) -> list[str]:
    """Make plugins importable (`--plugin`, then LAB_PLUGINS) and return the names that they allow."""
    from_environment = [entry for entry in os.environ.get("LAB_PLUGINS", "").split(os.pathsep) if entry]
    return [_declare(entry) for entry in (*declared, *from_environment)]


def _declare(entry: str) -> str:
    """Return the package name of a plugin; a path to a .py file or package directory goes on `sys.path` first."""
    path = Path(entry).expanduser()
    if path.suffix == ".py" or path.is_dir():
        if not path.exists():
            raise ConfigError(f"--plugin {entry}: no such file or package directory")
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        return path.resolve().stem
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", entry):
        raise ConfigError(f"--plugin {entry}: neither a .py file, a package directory nor a package name")
    return entry
