from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rl_lab.config.options_page import options_page, packaged_targets, type_name
from rl_lab.config.schema import BLOCKS

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def test_the_committed_page_is_current():
    assert PAGE.read_text() == options_page(), "run: python -m rl_lab.config.options_page > docs/options.md"


def test_every_option_is_on_the_page():
    page = options_page()
    for block, model in BLOCKS.items():
        for key in model.model_fields:
            assert f"| `{block}.{key}` |" in page
    for target in packaged_targets():
        assert f"### `{target}`" in page


def test_types_read_like_yaml():
    assert type_name(int | None) == "int | null"
    assert type_name(Literal["a", "b"]) == "'a' | 'b'"
    assert type_name(Annotated[int, Field(ge=1, lt=9)]) == "int >= 1, < 9"
    assert type_name(tuple[int, ...]) == "tuple[int, ...]"
    assert type_name(dict[str, list[Any]]) == "dict[str, list[Any]]"
