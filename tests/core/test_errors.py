from rl_lab.core.errors import enumerated, unknown_name


def test_few_choices_are_all_listed():
    line = unknown_name("key", "gama", ["lr", "gamma"])
    assert line == "unknown key 'gama'; did you mean 'gamma'? (choices: gamma, lr)"
    assert unknown_name("key", "x", []) == "unknown key 'x' (choices: none)"


def test_of_very_many_choices_the_nearest_are_listed():
    names = [*(f"other_{number}" for number in range(1_000)), "ppo_cartpole", "ppo_pendulum"]
    line = unknown_name("experiment", "ppo_cartpol", names, "lab list experiments")
    assert line.startswith("unknown experiment 'ppo_cartpol'; did you mean 'ppo_cartpole'? (choices: ppo_cartpole, ")
    assert line.endswith(" more: lab list experiments)")
    assert len(line) < 200
    assert enumerated(["a"] * 40).count("a") == 40
    assert enumerated([f"n{number:02}" for number in range(41)], "zzz") == "n00, n01, n02, n03, n04, n05 and 35 more"
