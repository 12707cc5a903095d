"""Tables as a library draws them, without the library: rich, where nothing has to give way."""

import io
import random

import pytest
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from rl_lab.cli.table import print_table, table


def by_rich(titles, rows, width):
    drawn = Table(*(Column(Text(title), overflow="fold") for title in titles))
    for row in rows:
        drawn.add_row(*map(Text, row))
    file = io.StringIO()
    Console(file=file, force_terminal=False, color_system=None, width=width).print(drawn)
    return file.getvalue()


@pytest.mark.parametrize("seed", range(20))
def test_a_table_that_fits_is_the_one_of_rich(seed):
    rng = random.Random(seed)
    words = ["", "a", "run_00001", "[bold]x[/]", "12,345", "eval/return", "two words", "größer", "日本語", "é"]
    titles = [rng.choice(words[1:]) for _ in range(rng.randint(1, 6))]
    rows = [[rng.choice(words) for _ in titles] for _ in range(rng.randint(0, 5))]
    assert table(titles, rows, 120) == by_rich(titles, rows, 120)


def test_the_widest_column_gives_way():
    drawn = table(["run", "n"], [["a" * 25, "1"], ["one two three four", "2"], ["x\ny", "3"]], 20)
    assert drawn.splitlines() == [
        "┏━━━━━━━━━━━━━━┳━━━┓",
        "┃ run          ┃ n ┃",
        "┡━━━━━━━━━━━━━━╇━━━┩",
        "│ aaaaaaaaaaaa │ 1 │",
        "│ aaaaaaaaaaaa │   │",
        "│ a            │   │",
        "│ one two      │ 2 │",
        "│ three four   │   │",
        "│ x            │ 3 │",
        "│ y            │   │",
        "└──────────────┴───┘",
    ]


def test_wide_letters_are_cut_by_their_width():
    drawn = table(["a"], [["日本語日本語"]], 10)
    assert drawn.splitlines()[3:5] == ["│ 日本語 │", "│ 日本語 │"]


def test_no_room_at_all_is_no_error():
    assert len(table(["abc", "def"], [["1", "2"]], 3).splitlines()) == 7


def test_where_there_is_only_ascii():
    assert table(["a"], [["1"]], 80, is_ascii=True) == "+---+\n| a |\n+---+\n| 1 |\n+---+\n"


def test_titles_are_bold_on_a_terminal_only(capsys):
    print_table(["a"], [["1"]])
    assert "\x1b" not in capsys.readouterr().out
    assert "┃ \x1b[1ma\x1b[0m ┃" in table(["a"], [["1"]], 80, is_bold=True)
