"""Arithmetic over other keys, such as `2 * environment.num_envs`: read as a syntax tree, computed node by node."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from rl_lab.core.errors import ConfigError, unknown_name

Lookup = Callable[[str], Any]  # dotted key -> its value
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,  # never a number of a million digits
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"min": min, "max": max, "abs": abs, "round": round, "int": int, "float": float},
    **{"sqrt": math.sqrt, "log": math.log, "log2": math.log2, "log10": math.log10, "exp": math.exp},
}


class Expression:
    """A value that is computed from those of other keys."""

    def __init__(self, path: str, text: object) -> None:
        self.path, self.text = path, text
        if not isinstance(text, str):
            raise ConfigError(f"{path}: an expression is text, such as '2 * environment.num_envs', not {text!r}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"{path}: cannot read the expression {text!r}") from error

    def value(self, lookup: Lookup) -> Any:
        """Return what it comes to; `lookup` knows the other keys."""
        try:
            return self._compute(self._tree, lookup)
        except (ArithmeticError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self.path}: {self.text!r} cannot be computed: {error}") from error

    def _compute(self, node: ast.expr, lookup: Lookup) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute):
            return lookup(self._key(node))
        if isinstance(node, ast.List | ast.Tuple):
            return [self._compute(part, lookup) for part in node.elts]
        if isinstance(node, ast.IfExp):
            return self._compute(node.body if self._compute(node.test, lookup) else node.orelse, lookup)
        if isinstance(node, ast.Subscript):
            return self._compute(node.value, lookup)[self._compute(node.slice, lookup)]
        return self._operation(node, lookup)

    def _operation(self, node: ast.expr, lookup: Lookup) -> Any:
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](self._compute(node.left, lookup), self._compute(node.right, lookup))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._compute(node.operand, lookup)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            right = self._compute(node.comparators[0], lookup)
            return _COMPARE[type(node.ops[0])](self._compute(node.left, lookup), right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            if node.func.id not in _FUNCTIONS:
                raise ConfigError(f"{self.path}: " + unknown_name("function", node.func.id, _FUNCTIONS))
            return _FUNCTIONS[node.func.id](*(self._compute(part, lookup) for part in node.args))
        raise ConfigError(f"{self.path}: {ast.unparse(node)!r} is no arithmetic over keys")

    def _key(self, node: ast.expr) -> str:
        """Return the dotted key that a name or a chain of attributes spells."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            raise ConfigError(f"{self.path}: {self.text!r} names keys as block.key")
        return ".".join([node.id, *reversed(parts)])
