from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import Field

from rl_lab.config.typed_values import coerce, is_plain, whole_numbers
from rl_lab.core import ConfigError


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1e6, int, 1_000_000),
        (3, float, 3.0),
        ([1.0, 2], tuple[int, ...], (1, 2)),
        ([64, 64], Sequence[int], [64, 64]),
        ("fast", Literal["fast", "slow"], "fast"),
        (None, int | None, None),
        ({"a": 1.0}, dict[str, Any], {"a": 1.0}),
        ({"a": [1e2]}, Mapping[str, list[int]], {"a": [100]}),
        (0.5, float | torch.Tensor, 0.5),
        ("anything", torch.device, "anything"),
        ("anything", Callable[[], None] | None, "anything"),
        (5, Annotated[int, Field(ge=1)], 5),
    ],
)
def test_values_become_what_the_type_asks_for(value, annotation, expected):
    result = coerce("key", value, annotation)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "text"),
    [
        ("abc", int, "key: must be a valid integer, not 'abc'"),
        ("3", int, "key: must be a valid integer, not '3'"),
        (True, int, "key: must be a valid integer, not True"),
        (1.5, int, "key: must be a valid integer, not 1.5"),
        (1, bool, "key: must be a valid boolean, not 1"),
        (3, str, "key: must be a valid string, not 3"),
        ("x", Literal["fast", "slow"], "key: must be 'fast' or 'slow', not 'x'"),
        ([1, "a"], list[int], "key.1: must be a valid integer, not 'a'"),
        ({"a": "b"}, dict[str, float], "key.a: must be a valid number, not 'b'"),
        ("abc", float | torch.Tensor, "key: must be a valid number, not 'abc'"),
        (0, Annotated[int, Field(ge=1)], "key: must be greater than or equal to 1, not 0"),
        ("x", int | None, "key: must be a valid integer, not 'x'"),
    ],
)
def test_wrong_values_are_told_in_one_line(value, annotation, text):
    with pytest.raises(ConfigError) as error:
        coerce("key", value, annotation)
    assert str(error.value) == text


def test_what_yaml_can_write():
    assert is_plain(dict[str, list[int | None]])
    assert not is_plain(list[torch.nn.Module])
    assert whole_numbers({"a": [1.0, 1.5, True, "x"]}) == {"a": [1, 1.5, True, "x"]}
