from types import SimpleNamespace

import pytest

from rl_lab.config.schema import LabConfig, defaults
from rl_lab.config.validate import read_phases, reject_sizes
from rl_lab.core import ConfigError, HookCall, Phase

PHASE = "training.phases.0"


def test_values_have_the_declared_types(validated):
    config = validated("training.total_timesteps=1e3", "algorithm.sizes=[8.0,8]")
    assert config["training"]["total_timesteps"] == 1000
    assert isinstance(config["training"]["total_timesteps"], int)
    assert config["algorithm"]["sizes"] == (8, 8)
    assert config["components"]["critic"] is None


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("expriment.seed=3", "unknown block 'expriment'; did you mean 'experiment'?"),
        ("training.total_timestep=3", "unknown key in training 'total_timestep'; did you mean 'total_timesteps'?"),
        ("experiment.seed=abc", "experiment.seed: must be a valid integer, not 'abc'"),
        ("experiment.seed=-1", "experiment.seed: must be greater than or equal to 0, not -1"),
        ("experiment.device=gpu", "experiment.device: 'gpu' does not fit (auto"),
        ("experiment.name=a/b", "experiment.name: 'a/b' does not fit"),
        ("training.total_timesteps=0", "training.total_timesteps: must be greater than or equal to 1, not 0"),
        ("training.checkpoint_minutes=0", "training.checkpoint_minutes: must be greater than 0, not 0"),
        (
            "training.resume_mode=warm",
            "training.resume_mode: must be 'exact', 'fork', 'warm_start' or 'warm_start_optimizer'",
        ),
        ("training.phases=3", "training.phases: must be a valid array"),
        ("logging.csv=maybe", "logging.csv: must be a valid boolean, not 'maybe'"),
        ("budget.caps.x=y", "budget.caps.x: must be a valid integer, not 'y'"),
        ("schema_version=0", "schema_version: must be greater than or equal to 1"),
        ("algorithm=3", "algorithm: must be an object, not 3"),
        ("environment.num_env=3", "environment: unknown argument of CartPole 'num_env'; did you mean 'num_envs'?"),
        (
            "environment.device=cpu",
            "environment.device: the lab gives it itself",
        ),
        (
            "buffers.all={_target_: tiny_plugin.UnionBuffer, parts: [{_target_: tiny_plugin.SizedBuffer, size: 3}]}",
            "buffers.all.parts.0: unknown argument of SizedBuffer 'size' (choices: capacity",
        ),
        (
            "environment._target_=torch.nn.Linear",
            "environment._target_: 'torch.nn.Linear' is not a subclass of VectorEnv",
        ),
        ("environment._target_=os.system", "environment._target_: 'os.system' is not allowed"),
        ("workflow._target_=torch.nn.Linear", "workflow._target_: 'torch.nn.Linear' is not a subclass of Workflow"),
        ("workflow.gamma=0.5", "algorithm.gamma: also given as workflow.gamma"),
        ("algorithm.gama=0.5", "algorithm: unknown argument of TinyWorkflow 'gama'; did you mean 'gamma'?"),
        ("algorithm.score=os:system", "algorithm.score: module 'os' is not allowed"),
        ("environment.name=this:1", "environment.name: module 'this' is not allowed"),
        ("environment.name=' this: x'", "environment.name: module 'this' is not allowed"),
        (
            "algorithm.score={_target_: rl_lab.environments.hosting.foreign.load_package, package: this}",
            "algorithm.score._target_: 'rl_lab.environments.hosting.foreign' is not allowed",
        ),
        (
            "algorithm.score={_target_: rl_lab.environments.minigrid.load_package, package: this, name: x, extra: y}",
            "algorithm.score._target_: 'rl_lab.environments.minigrid.load_package' is not a class or function",
        ),
        ("components.actor.bia=1", "components.actor: unknown argument of Linear 'bia'; did you mean 'bias'?"),
        ("components.other.x=1", "components.other: missing _target_ (a dotted name"),
        ("optimizers.polcy.lr=1", "optimizers.polcy: missing _target_"),
        ("gamma=0.5", "unknown block 'gamma'; did you mean algorithm.gamma? (choices: alerts, algorithm, "),
        ("lr=0.5", "unknown block 'lr'; did you mean optimizers.policy.lr? ("),
        ("seed=5", "unknown block 'seed'; did you mean experiment.seed? ("),
        ("components.actor._args_=[1]", "components.actor._args_: unknown key '_args_'"),
        (
            "buffers.rollout._target_=tiny_plugin.Wrapper",
            "buffers.rollout._target_: 'tiny_plugin.Wrapper' is not a subclass",
        ),
        ("optimizers.policy._partial_=false", "optimizers.policy: needs _partial_: true"),
        ("optimizers.policy.lrr=1", "optimizers.policy: unknown argument of Adam 'lrr'; did you mean 'lr'?"),
        ("optimizers.policy._target_=torch.load", "optimizers.policy._target_: 'torch.load' is not allowed"),
        (
            f"{PHASE}.workflow_hooks=[collect,update_polcy]",
            "unknown hook of phase 'train' 'update_polcy'; did you mean",
        ),
        (f"{PHASE}.buffer=replay", "unknown buffer of phase 'train' 'replay' (choices: rollout)"),
        (
            "training.phases=[{name: train, workflow_hooks: [collect]}]",
            "phase 'train' needs exactly one of duration_steps",
        ),
        (f"{PHASE}.type=offline", "phase 'train' is declared 'offline' but its hooks"),
        (f"{PHASE}.workflow_hooks=[update_policy]", "phase 'train' never ends"),
        ("training.phases=[]", "training.phases is empty"),
        ("buffers.rollout=null", "phase 'train' must say which buffer it uses (choices: none)"),
    ],
)
def test_mistakes_die_at_the_start_in_one_line(validated, override, text):
    with pytest.raises(ConfigError) as error:
        validated(override)
    assert str(error.value).startswith(text), str(error.value)
    assert "\n" not in str(error.value)


def test_evaluation_is_scheduled_in_one_way_only(validated, targets):
    for extra in ([], ["training.phases=[{name: train, type: online, duration_steps: 10}]"]):
        (phase,) = read_phases(validated("training.eval_frequency=100", *extra), targets)
        assert [(call.name, call.every_steps) for call in phase.hooks] == [
            ("collect", None),
            ("update_policy", None),
            ("evaluate", 100),
        ]
    for hooks in ("[collect,evaluate]", "[collect,{evaluate: {every_steps: 5}}]"):
        with pytest.raises(ConfigError, match="both schedule evaluation: give one of them"):
            validated("training.eval_frequency=100", f"{PHASE}.workflow_hooks={hooks}")


def test_every_option_says_what_it_means():
    for name, field in LabConfig.model_fields.items():
        nested = getattr(field.annotation, "model_fields", {})
        assert field.description or nested, name
        for key, option in nested.items():
            assert option.description, f"{name}.{key}"
    assert defaults()["training"]["total_timesteps"] == "???"


@pytest.mark.parametrize(
    ("needed", "hooks", "is_refused"),
    [
        (128, ("collect", "update_agent"), False),  # two cycles of 64 steps reach the total of 100, and go beyond
        (129, ("collect", "update_agent"), True),
        (129, ("collect",), False),  # nothing learns
    ],
)
def test_a_first_batch_after_the_end_is_refused(needed, hooks, is_refused):
    calls = tuple(HookCall(hook, is_update=hook == "update_agent") for hook in hooks)
    phase = Phase("train", "online", calls, "steps", 100, buffer="replay")
    config = {"training": {"total_timesteps": 100}, "buffers": {"replay": {"batch_size": needed}}}
    buffers = {"replay": SimpleNamespace(needed_steps=needed)}
    context = SimpleNamespace(config=config, buffers=buffers, num_envs=64)
    if not is_refused:
        reject_sizes((phase,), context)
        return
    with pytest.raises(ConfigError, match=r"^buffers\.replay: 129 steps before .* than training\.total_timesteps=100$"):
        reject_sizes((phase,), context)


@pytest.mark.parametrize(("unit", "duration", "most"), [("steps", 33, 40), ("cycles", 3, 60), ("updates", 1, 1000)])
def test_a_phase_that_learns_from_too_little_is_refused(unit, duration, most):
    """A cycle of 5 vector steps in 4 environments collects 20 env steps."""
    seed = Phase("seed", "online", (HookCall("collect", 5),), unit, duration, buffer="replay")
    learn = Phase("learn", "offline", (HookCall("update_agent", is_update=True),), "updates", 9, buffer="replay")
    config = {"training": {"total_timesteps": 1000}, "buffers": {"replay": {"sequence_length": 3}}}

    def check(needed, *phases):
        buffers = {"replay": SimpleNamespace(needed_steps=needed)}
        reject_sizes(phases, SimpleNamespace(config=config, buffers=buffers, num_envs=4))

    check(most, seed, learn)
    check(most + 1, learn)  # nothing collects for it: it may bring its data with it
    if most < 1000:
        check(most + 1, seed, seed, learn)
        text = (
            f"phase 'learn' can never update: buffer 'replay' waits for {most + 1} env steps or more, .* collect {most}"
        )
        with pytest.raises(ConfigError, match=text):
            check(most + 1, seed, learn)
