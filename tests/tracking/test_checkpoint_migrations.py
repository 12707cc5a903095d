from rl_lab.tracking import checkpoint_files, checkpoint_migrations
from rl_lab.tracking.checkpoint_migrations import MIGRATIONS, Migration, to_today, untranslated


def test_there_is_a_step_from_every_version_to_the_next():
    assert len(MIGRATIONS) == checkpoint_files.SCHEMA_VERSION - 1
    assert untranslated(1) == "running episodes"
    assert untranslated(checkpoint_files.SCHEMA_VERSION) == ""


def test_steps_follow_each_other_from_the_version_that_is_given(monkeypatch):
    steps = (
        Migration(lambda state: {"b": state["a"] + 1}, untranslated="first"),
        Migration(lambda state: {"c": state["b"] * 10}),
        Migration(lambda state: {"d": -state["c"]}, untranslated="third"),
    )
    monkeypatch.setattr(checkpoint_migrations, "MIGRATIONS", steps)
    state = {"a": 2}
    assert to_today(state, 1) == {"d": -30}
    assert state == {"a": 2}
    assert to_today({"b": 5}, 2) == {"d": -50}
    assert to_today({"d": 7}, 4) == {"d": 7}
    assert [untranslated(version) for version in (1, 2, 3, 4)] == ["first, third", "third", "third", ""]
