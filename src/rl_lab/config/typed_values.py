"""Checks a YAML value against a type annotation: strict, except that whole floats such as 1e6 are whole numbers."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rl_lab.core.errors import ConfigError, unknown_name

_LEAVES = (int, float, bool, str, type(None), Any)
_CONTAINERS = (list, tuple, dict, Sequence, Mapping, typing.Sequence, typing.Mapping)


def is_plain(annotation: Any) -> bool:
    """Return whether YAML can write every value of this type."""
    origin = get_origin(annotation)
    if origin is Literal or annotation in _LEAVES or annotation in _CONTAINERS or annotation is Ellipsis:
        return True
    if origin is Annotated:
        return is_plain(get_args(annotation)[0])
    if origin in (Union, types.UnionType) or origin in _CONTAINERS:
        return all(is_plain(part) for part in get_args(annotation))
    return False


def plain_part(annotation: Any) -> Any:
    """Return what of this type YAML can write: `float` of `float | Tensor`; None when that is nothing."""
    if is_plain(annotation):
        return annotation
    if get_origin(annotation) not in (Union, types.UnionType):
        return None
    parts = [part for part in get_args(annotation) if is_plain(part)]
    return Union[tuple(parts)] if any(part is not type(None) for part in parts) else None  # noqa: UP007


@lru_cache(maxsize=512)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def coerce(path: str, value: Any, annotation: Any) -> Any:
    """Return `value` as the type asks for it, or raise a ConfigError that names the key."""
    wanted = plain_part(annotation)
    if wanted is None:
        return value
    try:
        return _validate(_adapter(wanted), value)
    except ValidationError as error:
        raise ConfigError(describe(path, error)) from None


def coerce_model(path: str, value: Any, model: type[BaseModel]) -> dict[str, Any]:
    """Return `value` as the model dumps it, or raise a ConfigError that names the key and the valid ones."""
    try:
        checked: BaseModel = _validate(_adapter(model), value)
    except ValidationError as error:
        raise ConfigError(describe(path, error, model)) from None
    return checked.model_dump()


def _validate(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Validate as JSON, so that lists are tuples where those are wanted; a second time with whole floats as ints."""
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        whole = whole_numbers(value)
        if json.dumps(whole) == json.dumps(value):
            raise
        return adapter.validate_json(json.dumps(whole), strict=True)


def whole_numbers(value: Any) -> Any:
    """Turn floats without a fraction into ints, however deep."""
    if isinstance(value, Mapping):
        return {key: whole_numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def describe(path: str, error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Return the first problem as one line: the key, what was wrong, the choices."""
    details = error.errors(include_url=False)
    first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
    location = [str(part) for part in first["loc"] if not _is_union_tag(part)]
    where = ".".join([path, *location] if path else location)
    if first["type"] == "extra_forbidden" and model is not None:
        parent = ".".join(where.split(".")[:-1])
        return unknown_name(f"key in {parent}" if parent else "block", location[-1], _fields(model, location[:-1]))
    if first["type"] == "missing":
        return f"{where}: missing"
    if first["type"] == "string_pattern_mismatch" and model is not None:
        fits = str(_field(model, location).description).removesuffix(".")
        return f"{where}: {first['input']!r} does not fit ({fits})"
    wanted = re.sub("^(Input|String|Value) should", "must", first["msg"])
    return f"{where}: {wanted}, not {first['input']!r}"


def _is_union_tag(part: Any) -> bool:
    """Pydantic adds the branch of a union (`int`, `list[str]`, `constrained-int`) to the location."""
    return isinstance(part, str) and (part in ("int", "float", "bool", "str", "none") or any(c in part for c in "[-("))


def _block(model: type[BaseModel], location: Sequence[str]) -> type[BaseModel]:
    for key in location:
        declared = model.model_fields[key].annotation
        annotation = next(iter(get_args(declared)), declared)  # the first of `Block | None`
        assert isinstance(annotation, type), f"{key} is a declared block"
        assert issubclass(annotation, BaseModel), f"{key} is a declared block"
        model = annotation
    return model


def _fields(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    return list(_block(model, location).model_fields)


def _field(model: type[BaseModel], location: Sequence[str]) -> FieldInfo:
    return _block(model, location[:-1]).model_fields[location[-1]]
