import pytest

from rl_lab.core.errors import ConfigError
from rl_lab.tuning.expressions import Expression

KEYS = {"environment.num_envs": 8, "algorithm.lr": 0.5, "n": 3, "components.actor.hidden_dims": [64, 32]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * environment.num_envs", 16),
        ("environment.num_envs // n + 1", 3),
        ("-algorithm.lr / 2", -0.25),
        ("n ** 2", 9),
        ("max(n, 5) % 3", 2),
        ("int(sqrt(environment.num_envs * 2))", 4),
        ("[n, 2 * n]", [3, 6]),
        ("components.actor.hidden_dims[1]", 32),
        ("'small' if n < 4 else 'large'", "small"),
    ],
)
def test_arithmetic_over_keys(text, value):
    assert Expression("sweep.key", text).value(KEYS.__getitem__) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 *", "cannot read the expression"),
        (5, "an expression is text"),
        ("n / 0", "cannot be computed"),
        ("__import__('os').system('true')", "no arithmetic over keys"),
        ("open('file')", "unknown function 'open'"),
        ("squrt(n)", "did you mean 'sqrt'?"),
        ("(lambda: n)()", "no arithmetic over keys"),
        ("[x for x in n]", "no arithmetic over keys"),
        ("9 ** 9 ** 9", "cannot be computed"),
        ("'a' + n", "cannot be computed"),
    ],
)
def test_anything_else_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match=r"^sweep.key: ") as error:
        Expression("sweep.key", text).value(KEYS.__getitem__)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
