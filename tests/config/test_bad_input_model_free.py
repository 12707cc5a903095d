"""What does not fit a model-free algorithm is told in one line at the start, and leaves nothing on disk."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.components.continuous_actions import FITTING, ActionScale
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import Box, ConfigError, EnvSpec
from rl_lab.workflows.sac import SAC
from tests.workflows.off_policy import networks, start

KINDS = {"continuous": "continuous", "discrete": "discrete", "multi-discrete": "multi_discrete", "mixed": "mixed"}
WORKFLOWS = ("PPO", "PPOAMP", "SAC", "RLPD", "TD3", "DQN", "SQL", "Dreamer", "PlaNet", "TDMPC", "WorldModels")
WORKFLOWS += ("BehaviorCloning", "DiffusionPolicy")
PPO = [
    "+workflow=ppo",
    "+components@components.actor=mlp",
    "+buffer@buffers.rollout=rollout",
    "+training=on_policy",
]
PENDULUM, CARTPOLE = "+experiment=sac_pendulum", "+environment=cartpole"
SETTINGS = {("SAC", "discrete"): ["+preset=sac_discrete"]} | {("PPO", kind): PPO for kind in KINDS}
PRIOR = ["+preset=ppo_amp", "buffer@buffers.motions=replay", "components.discriminator.key=null"]
SETTINGS |= {("PPOAMP", kind): PRIOR for kind in KINDS}
SETTINGS |= {("RLPD", kind): ["+preset=rlpd", "+training=off_policy"] for kind in KINDS}
SETTINGS |= {("Dreamer", kind): ["+preset=dreamer_v3", "budget=tiny"] for kind in KINDS}
SETTINGS |= {("PlaNet", kind): ["+preset=planet", "budget=tiny"] for kind in KINDS}
SETTINGS |= {("TDMPC", kind): ["+preset=tdmpc2", "budget=tiny"] for kind in KINDS}
SETTINGS |= {("WorldModels", kind): ["+preset=world_models", "budget=tiny"] for kind in KINDS}
SHOWN = "++training.phases=[{name: p, buffer: demonstrations, duration_steps: 1, hooks: [collect, update_policy]}]"
SETTINGS |= {("BehaviorCloning", kind): ["+preset=bc", SHOWN] for kind in KINDS}
CHUNKS = ["buffer@buffers.demonstrations=chunks", "algorithm.prediction_horizon=8"]
SETTINGS |= {("DiffusionPolicy", kind): ["+preset=diffusion", *CHUNKS, SHOWN] for kind in KINDS}
MEMORY = (
    "+components@components.memory=gru",
    "components.memory.hidden_dim=8",
    "buffer@buffers.replay=sequence",
)
RUN = ("experiment.name=bad", "training.total_timesteps=1e5")


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Return the one line that `lab train` refuses its overrides with; nothing may be left on disk."""
    monkeypatch.setenv("LAB_EXPERIMENTS", str(tmp_path / "experiments"))
    monkeypatch.chdir(tmp_path)

    def train(*overrides):
        result = CliRunner().invoke(app, ["train", *overrides])
        assert result.exit_code == 2, result.output
        assert list(tmp_path.iterdir()) == []
        (line,) = result.output.strip().splitlines()
        return line.removeprefix("error: ")

    return train


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ("+preset=dqn", "+environment=pendulum", *RUN),
            "workflow: DQN does not take the continuous actions of 'Pendulum-v1' "
            "(fitting: BehaviorCloning, DiffusionPolicy, Dreamer, PPO, PPOAMP, PlaNet, RLPD, SAC, SQL, TD3, TDMPC, ",
        ),
        (
            ("+preset=td3", CARTPOLE, *RUN),
            "workflow: TD3 does not take the discrete actions of 'CartPole-v1' "
            "(fitting: BehaviorCloning, DQN, Dreamer, PPO, PPOAMP, PlaNet, SAC, TDMPC, WorldModels)",
        ),
        (
            ("+preset=sql", CARTPOLE, *RUN),
            "workflow: SQL does not take the discrete actions of 'CartPole-v1' "
            "(fitting: BehaviorCloning, DQN, Dreamer, PPO, PPOAMP, PlaNet, SAC, TDMPC, WorldModels)",
        ),
        (
            ("+preset=sac", "+environment=identity", "environment.kind=multi_discrete", *RUN),
            "workflow: SAC does not take the multi-discrete actions of 'tensor/Identity-multi_discrete' "
            "(fitting: BehaviorCloning, Dreamer, PPO, PPOAMP, PlaNet, TDMPC, WorldModels)",
        ),
        (
            ("+preset=sac", "+environment=dm_control", "environment.name=dm_control/lqr-lqr_2_1", *RUN),
            "workflow: SAC needs finite action bounds, those of 'dm_control/lqr-lqr_2_1' are infinite",
        ),
        (
            (PENDULUM, "training.total_timesteps=400"),
            "algorithm.random_steps: 500 env steps of random actions are not less than training.total_timesteps=400",
        ),
        (
            ("+experiment=td3_pendulum", "algorithm.random_steps=1e6"),
            "algorithm.random_steps: 1000000 env steps of random actions are not less than training.total_timesteps=",
        ),
        (  # the buffer, which would wait as long, is not what is wrong
            (PENDULUM, "algorithm.random_steps=2e6"),
            "algorithm.random_steps: 2000000 env steps of random actions are not less than training.total_timesteps=",
        ),
        (
            (PENDULUM, "buffers.replay.min_size=30_000"),
            "buffers.replay.min_size: 30000 steps before the first update are more than training.total_timesteps=20000",
        ),
        (
            (PENDULUM, "buffers.replay.capacity=200", "buffers.replay.min_size=100"),
            "buffers.replay.capacity: 200 is smaller than batch_size=256",
        ),
        (
            (PENDULUM, "buffers.replay.capacity=200", "buffers.replay.min_size=null"),
            "buffers.replay: min_size=256 (batch_size when it is null) is more than capacity=200 holds",
        ),
        (
            (PENDULUM, "buffers.replay.min_size=null", "buffers.replay.batch_size=999", "training.total_timesteps=600"),
            "buffers.replay: 999 steps before the first update (min_size, or batch_size when it is null) are more than "
            "training.total_timesteps=600",
        ),
        (
            (PENDULUM, "components@components.actor=ensemble", "components.actor.input_dim=3"),
            "components.actor: needs one network (such as MLP), not an EnsembleMLP",
        ),
        (
            ("+experiment=sql_pendulum", "components@components.actor=ensemble", "components.actor.input_dim=4"),
            "components.actor: needs one network (such as MLP), not an EnsembleMLP",
        ),
        (
            ("+preset=sac", CARTPOLE, *RUN),
            "components.critic.input_dim: must be 4 (4 features), not 6, as for continuous actions: these are discrete "
            "(preset sac_discrete; workflows SAC, DQN, PPO)",
        ),
        (
            ("+experiment=sac_cartpole", "environment=pendulum"),
            "components.critic.input_dim: must be 4 (3 features and 1 of the action), not 3, as for discrete actions: "
            "these are continuous (preset sac; workflows SAC, SQL, TD3, PPO)",
        ),
        (
            (PENDULUM, "components.critic.input_dim=3"),
            "components.critic.input_dim: must be 4 (3 features and 1 of the action), not 3",
        ),
        (
            ("+experiment=sac_memory_gru", "components.actor.input_dim=5"),
            "components.actor.input_dim: must be 64 (64 features), not 5",
        ),
        ((PENDULUM, "algorithm.subset_size=3"), "algorithm.subset_size: 3 of 2 critics"),
        (
            ("+experiment=sac_memory_gru", "components@components.memory=lstm", "components.memory.input_dim=3"),
            "components.memory.input_dim: must be 5 (5 numbers of the observation), not 3",
        ),
        (
            ("+experiment=dqn_memory_gru", "+components@components.encoder=mlp"),
            "components.memory.input_dim: must be 64 (64 features of the encoder), not 5",
        ),
        (
            (PENDULUM, "+components@components.encoder=mlp", "components.encoder.input_dim=9"),
            "components.encoder.input_dim: must be 3 (3 numbers of the observation), not 9",
        ),
        ((PENDULUM, "algorithm.image_shift=4"), "algorithm.image_shift: 'Pendulum-v1' shows no images to move (set 0)"),
        (
            (PENDULUM, "buffers.replay.frame_stack=4"),
            "buffers.replay: frame_stack=4: 'Pendulum-v1' shows no pictures in uint8 (set 1)",
        ),
        (
            ("+experiment=munchausen_cartpole", "algorithm.munchausen_clip=1"),
            "algorithm.munchausen_clip: must be less than or equal to 0, not 1",
        ),
        (
            (PENDULUM, "algorithm.policy=gausian"),
            "algorithm.policy: must be 'gaussian', 'mixture' or 'flow', not 'gausian'",
        ),
        (
            ("+experiment=td3_pendulum", "algorithm.noise=pink"),
            "algorithm.noise: must be 'gaussian' or 'ou', not 'pink'",
        ),
        (
            ("+experiment=sac_cartpole", "algorithm.policy=flow"),
            "algorithm: policy and value_range of SAC are for continuous actions",
        ),
        ((PENDULUM, "algorithm.target_entropy=high"), "algorithm.target_entropy: must be"),
        (
            ("+experiment=sac_cartpole", "algorithm.target_entropy=5.0"),
            "algorithm.target_entropy: 5.0 nats are out of reach, policies here have between 0 and 0.69",
        ),
        (
            (PENDULUM, "buffer@buffers.replay=sequence"),
            "buffers.replay: SAC without components.memory learns from transitions, not from sequences "
            "(choices: replay, prioritized, hindsight)",
        ),
        (
            ("+experiment=td3_pendulum", "buffer@buffers.replay=sequence"),
            "buffers.replay: TD3 without components.memory learns from transitions, not from sequences",
        ),
        (
            ("+experiment=dqn_cartpole", "buffer@buffers.replay=sequence", "~buffers.replay.n_step"),
            "buffers.replay: DQN without components.memory learns from transitions, not from sequences",
        ),
        (
            (PENDULUM, *MEMORY[:2], "components.actor.input_dim=8", "components.critic.input_dim=9"),
            "buffers.replay: SAC with components.memory learns from sequences, not from transitions "
            "(choices: sequence)",
        ),
        (
            ("+experiment=sac_memory_gru", "buffer@buffers.replay=prioritized_sequence"),
            "buffers.replay: SAC with components.memory learns from sequences, not from prioritized sequences "
            "(choices: sequence)",
        ),
        (
            ("+experiment=dqn_memory_gru", "buffer@buffers.replay=prioritized_sequence"),
            "buffers.replay: DQN with components.memory learns from sequences, not from prioritized sequences",
        ),
        (
            ("+experiment=sql_pendulum", *MEMORY),
            "components.actor.input_dim: must be 9 (8 features and 1 of noise, algorithm.policy=implicit), not 4",
        ),
        (
            ("+experiment=sql_pendulum", "+components@components.encoder=mlp", "components.encoder.hidden_dims=[8]"),
            "components.actor.input_dim: must be 9 (8 features and 1 of noise, algorithm.policy=implicit), not 4",
        ),
        (
            (PENDULUM, "experiment.compile=captured", "experiment.device=cpu"),
            "experiment.compile: captured needs a GPU (choices: auto, eager, compiled)",
        ),
        (
            ("+experiment=ppo_pendulum_symmetric", "environment=pendulum"),
            "components.symmetry: 'Pendulum-v1' tells no mirror (give observation and action)",
        ),
        (
            ("+experiment=ppo_cartpole_recurrent", "+components@components.symmetry=symmetry"),
            "components.symmetry: does not go with components.memory: a carry has no mirror image",
        ),
        (
            ("+experiment=ppo_amp_circle", "buffers.motions.path=nothing.npz"),
            "buffers.motions: motions nothing.npz: there is no such file",
        ),
        (
            ("+experiment=ppo_amp_circle", "components.discriminator.key=amp"),
            "buffers.motions: key: unknown observation 'amp' (choices: achieved_goal, desired_goal, observation)",
        ),
        (
            ("+experiment=ppo_pendulum", "+components@components.rnd=rnd", "components.rnd.key=foot"),
            "components.rnd.key: the observation has no key 'foot', it is one array (set null)",
        ),
        (
            ("+experiment=ppo_estimator_pendulum", "components.estimator.entries=[7]"),
            "components.estimator.entries: must be numbers of 0 to 2, not [7]",
        ),
        (
            ("+experiment=ppo_cartpole", "experiment.compile=compiled", "experiment.device=cpu"),
            "experiment.compile: this workflow runs eager, not compiled (choices: auto, eager)",
        ),
        (
            ("+preset=sac", "+environment=car_racing", *RUN),
            "components.encoder: images need one (such as CNN)",
        ),
        (
            (PENDULUM, "components.critic=null"),
            "unknown component 'critic' (choices: actor)",
        ),
        (
            (PENDULUM, "components@components.critic=mlp", "components.critic.input_dim=4"),
            "components.critic: needs an EnsembleMLP",
        ),
        (
            ("+experiment=sac_pong", "algorithm.normalize_observations=true"),
            "algorithm.normalize_observations: needs vectors, not images or a dict that an encoder reads",
        ),
    ],
)
def test_bad_input_dies_in_one_line(refused, overrides, text):
    assert refused(*overrides).startswith(text)


def test_one_number_is_a_continuous_action_too():
    """A Box of shape () has actions [N] in the environment and [N, 1] in networks."""
    scale = ActionScale(EnvSpec("Dial-v0", Box((3,)), Box((), low=-1.0, high=3.0), 10), "SAC")
    turned = torch.tensor([[-1.0, 0.0, 1.0], [0.5, -0.5, 0.0]])  # [T, N]
    assert torch.equal(scale.to_unit(2.0 * turned + 1.0), turned.unsqueeze(-1))
    assert torch.equal(scale.to_environment(turned.unsqueeze(-1)), 2.0 * turned + 1.0)


@pytest.mark.parametrize("experiment", ["sac_pendulum", "td3_pendulum", "sql_pendulum"])
def test_training_with_one_number(experiment, tmp_path):
    zoo = ("environment=gymnasium", "environment.name=tests.environments.zoo:Actor", "environment.num_envs=1")
    options = ("environment.env_kwargs={kind: scalar}", "environment.wrappers=[{time_limit: 20}]", "budget=tiny")
    result = CliRunner().invoke(
        app,
        ["train", f"+experiment={experiment}", *zoo, *options, "--plugin", "tests", "--run-dir", str(tmp_path / "run")],
    )
    assert result.exit_code == 0, result.output


def test_actions_without_a_dimension_have_no_entropy():
    spec = EnvSpec("Nothing-v0", Box((3,)), Box((0,), low=-1.0, high=1.0), 10)
    with pytest.raises(ConfigError, match="SAC needs actions, those of 'Nothing-v0' have no dimension"):
        start(SAC(), spec, lambda: networks(spec))


@pytest.mark.parametrize("experiment", ["sac_pendulum", "td3_pendulum", "sql_pendulum"])
def test_actions_without_a_dimension_are_told_at_start(refused, experiment):
    zoo = ("environment=gymnasium", "environment.name=tests.environments.zoo:Actor", "environment.num_envs=1")
    line = refused(f"+experiment={experiment}", *zoo, "environment.env_kwargs={kind: empty}", "--plugin", "tests")
    assert line.startswith("environment.name 'tests.environments.zoo:Actor' has the unsupported space Box")
    assert line.endswith("an action has no dimension")


def test_every_workflow_is_known_to_this_test():
    folder = Path(__file__).parents[2] / "src" / "rl_lab" / "workflows"
    others = {
        "random_policy",
        "flow_sac",
        "hiors",
        "sft",
        "reward_classifier",
    }  # they take every action, or are kin to the diffusion policy
    names = {path.stem.replace("_", "") for path in folder.glob("[a-z]*.py") if path.stem not in others}
    assert {name.lower() for name in WORKFLOWS} == names
    assert KINDS.keys() == FITTING.keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_fitting_workflows_are_those_that_accept(name, kind):
    composed = compose([*SETTINGS.get((name, kind), [f"+preset={name.lower()}"]), "+environment=identity", *RUN,
                        f"environment.kind={KINDS[kind]}", "environment.sizes=[3]"])  # fmt: skip
    if name not in FITTING[kind]:
        with pytest.raises(ConfigError, match=f"{name} does not take the {kind} actions of 'tensor/Identity-"):
            assemble(composed, Targets(AllowList()))
        return
    parts = assemble(composed, Targets(AllowList()))
    obs, num_envs = parts.env.reset(0), parts.env.num_envs
    is_first = torch.ones(num_envs, dtype=torch.bool)
    with torch.no_grad():
        actions, _, _ = parts.workflow.act(
            obs, parts.workflow.initial_carry(num_envs), is_first=is_first, explore=False, step=100
        )
    assert len(parts.env.step(actions).rewards) == num_envs
