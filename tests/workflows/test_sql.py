"""Soft Q-learning: an update against an independent implementation, its options one by one."""

import copy
import math

import pytest
import torch

from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, Update, flat_dim
from rl_lab.environments.identity import Identity
from rl_lab.environments.multigoal import MultiGoal
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.workflows.sql import SQL
from tests.workflows.off_policy import parts_of, phase, random_batch, resumes_exactly, run_tiny, score, start, train

torch.set_num_threads(1)
SPEC = EnvSpec("made-up", Box((3,)), Box((2,), low=-2.0, high=2.0))
POLICIES = ("implicit", "gaussian", "mixture", "flow")


def networks(spec, policy="implicit", hidden=(16,), num_members=2):
    dim, action_dim = flat_dim(spec.observation), flat_dim(spec.action)
    return {
        "actor": MLP(dim + (action_dim if policy == "implicit" else 0), hidden, "relu"),
        "critic": EnsembleMLP(dim + action_dim, hidden, num_members),
    }


def make_sql(spec=SPEC, *, hidden=(16,), num_members=2, seed=0, static=None, lr=1e-3, num_envs=4, **options):
    def components():
        return networks(spec, options.get("policy", "implicit"), hidden, num_members)

    names = ("actor", *([f"critic_{task}" for task in options.get("tasks", ())] or ["critic"]))
    return start(SQL(**options), spec, components, names=names, seed=seed, static=static, lr=lr, num_envs=num_envs)


def parameters(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def task_batch(**tasks):
    """Return a batch with infos, each a function of the made-up rewards."""
    batch = random_batch(SPEC)
    return batch | {"infos": {name: function(batch["rewards"]) for name, function in tasks.items()}}


def critic_value(critic, member, obs, action):
    """Return one critic's value of one state and action, layer by layer."""
    first, head = critic[0].trunk.layers[0], critic[0].head
    hidden = torch.relu(torch.cat([obs, action]) @ first.weight[member] + first.bias[member])
    return (hidden @ head.weight[member] + head.bias[member]).squeeze()


def lowest(critic, obs, action):
    return torch.min(critic_value(critic, 0, obs, action), critic_value(critic, 1, obs, action))


def naive_action(policy, obs, noise):
    first = policy.trunk[0]
    hidden = torch.relu(first.weight @ torch.cat([obs, noise]) + first.bias)
    return torch.tanh(policy.layer.weight @ hidden + policy.layer.bias)


def naive_direction(actions, moved, scores):
    """Return the Stein direction of each moved action, by loops over the formula of the paper."""
    distances = [[float((a - b).square().sum()) for b in moved] for a in actions]
    median = sorted((d for row in distances for d in row), reverse=True)[len(actions) * len(moved) // 2]
    h = max(median / math.log(len(actions)), 1e-3)
    directions = []
    for i, a_i in enumerate(moved):
        total = torch.zeros(2)
        for j, (a_j, score_j) in enumerate(zip(actions, scores, strict=True)):
            kernel = math.exp(-distances[j][i] / h)
            total += kernel * score_j - 2.0 * (a_j - a_i) / h * kernel
        directions.append(total / len(actions))
    return directions


def naive_update(workflow, batch, *, particles, fixed, moved, scale):
    """One step written from the paper: loops over states and particles, torch's own Adam."""
    adam = [torch.optim.Adam(module.parameters(), lr=1e-3) for module in (workflow.critic, workflow.policy)]
    size, units = len(batch["rewards"]), batch["actions"] / 2.0  # the bounds are -2 and 2
    loss = torch.zeros(())
    for row in range(size):
        with torch.no_grad():
            values = [lowest(workflow.target_critic, batch["next_observations"][row], a) for a in particles]
            soft = math.log(sum(math.exp(float(v)) for v in values) / len(values)) + 2 * math.log(2.0)
            goal = float(scale * batch["rewards"][row]) + (0.0 if batch["terminated"][row] else 0.99 * soft)
        for member in range(2):
            value = critic_value(workflow.critic, member, batch["observations"][row], units[row])
            loss = loss + 0.5 * (value - goal) ** 2 / size
    loss.backward()
    adam[0].step()
    gain = torch.zeros(())
    for row in range(size):
        obs = batch["observations"][row]
        still = [naive_action(workflow.policy, obs, noise).detach().requires_grad_() for noise in fixed[row]]
        scores = []
        for action in still:
            log_p = lowest(workflow.critic, obs, action) + torch.log(1.0 - action.square() + 1e-6).sum()
            scores.append(torch.autograd.grad(log_p, action)[0])
        going = [naive_action(workflow.policy, obs, noise) for noise in moved[row]]
        plain = [[action.detach() for action in actions] for actions in (still, going)]
        for action, direction in zip(going, naive_direction(*plain, scores), strict=True):
            gain = gain + (action * direction).sum()
    (-gain).backward()
    adam[1].step()
    return float(loss.detach())


def test_an_update_is_that_of_the_paper():
    options = {"value_particles": 5, "kernel_particles": 7, "update_ratio": 0.43, "reward_scale": 3.0}
    workflow, batch = make_sql(**options), random_batch(SPEC, size=6)
    other = copy.deepcopy(make_sql(**options))
    torch.manual_seed(3)
    metrics = workflow.update_agent(batch, phase=phase())
    torch.manual_seed(3)
    draws = {"particles": torch.rand(5, 2) * 2 - 1, "fixed": torch.randn(6, 4, 2), "moved": torch.randn(6, 3, 2)}
    expected = naive_update(other, batch, scale=3.0, **draws)
    assert float(metrics["critic_loss"]) == pytest.approx(expected, rel=1e-4)
    for name in ("critic", "policy"):
        torch.testing.assert_close(
            parameters(getattr(workflow, name)), parameters(getattr(other, name)), atol=2e-6, rtol=1e-4
        )


GOLDEN = [1.4836020469665527, 1.3225555419921875, 1.3929414749145508]  # of the critic's loss


def test_golden_losses():
    """Three updates on fixed numbers: a change that must not change computation leaves them as they are."""
    workflow, batch = make_sql(), random_batch(SPEC)
    torch.manual_seed(0)
    found = [float(workflow.update_agent(batch, phase=phase())["critic_loss"]) for _ in range(3)]
    assert found == pytest.approx(GOLDEN, rel=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_soft_value_is_the_log_of_the_integral(shared):
    workflow, obs = make_sql(value_particles=20_000, shared_particles=shared), torch.randn(3, 3)
    with torch.no_grad():
        found = workflow._soft_values(obs)[0]
        line = (torch.arange(100) + 0.5) / 50 - 1.0  # midpoints of 100 cells of [-1, 1]
        cells = torch.cartesian_prod(line, line)
        values = workflow.target_critic(obs, cells.expand(3, -1, -1))[0]
        expected = (values.double().exp().sum(-1) * 0.02**2).log()
    assert found.tolist() == pytest.approx(expected.tolist(), abs=0.02)


def test_shared_particles_are_the_same_for_all_states():
    obs = torch.ones(2, 3)
    for shared in (True, False):
        workflow = make_sql(shared_particles=shared)
        with torch.no_grad():
            first, second = workflow._soft_values(obs)[0].tolist()
        assert (first == second) == shared


def test_targets_are_copied_when_it_is_time():
    workflow, batch = make_sql(target_update_every=3), random_batch(SPEC)
    before = parameters(workflow.target_critic)
    for number in range(1, 7):
        workflow.update_agent(batch, phase=phase())
        after = parameters(workflow.target_critic)
        assert torch.equal(after, parameters(workflow.critic)) == (number % 3 == 0)
        assert torch.equal(after, before) == (number % 3 != 0)
        before = after


def test_soft_targets_move_a_little():
    workflow = make_sql(target_update_every=1, tau=0.25)
    before = parameters(workflow.target_critic)
    workflow.update_agent(random_batch(SPEC), phase=phase())
    expected = before + 0.25 * (parameters(workflow.critic) - before)
    torch.testing.assert_close(parameters(workflow.target_critic), expected)


def test_reward_scale_is_annealed_over_a_phase():
    workflow, batch = make_sql(reward_scale=2.0, reward_scale_end=10.0), random_batch(SPEC)
    for progress, scale in ((0.0, 2.0), (0.25, 4.0), (1.0, 10.0)):
        rewards = workflow._inputs(batch, phase(progress))["rewards"]
        torch.testing.assert_close(rewards, scale * batch["rewards"].unsqueeze(-1))


def test_each_task_has_rewards_and_critics_of_its_own():
    workflow = make_sql(tasks=["a", "b"], num_members=4)
    batch = task_batch(a=lambda r: r + 100.0, b=lambda r: r * 0.0 - 50.0)
    batch["discounts"] = torch.zeros(32)
    rows = workflow.perception(workflow._inputs(batch, phase()), workflow.target_perception, 0.99)
    expected = torch.stack([batch["rewards"] + 100.0, torch.full((32,), -50.0)])
    torch.testing.assert_close(workflow._targets(rows), expected)
    for _ in range(100):
        workflow.update_agent(batch, phase=phase())
    with torch.no_grad():
        a, b = (critics(batch["observations"], batch["actions"] / 2.0).mean(1) for critics in workflow.critic.tasks)
    assert (len(a), len(b)) == (2, 2)  # twins each
    assert a.min() > 0.5
    assert b.max() < -0.5


def held(workflow, task):
    """Return all that the critics of a task and their optimiser hold."""
    state = workflow.critics[task].optimizer.state_dict()["state"]
    values = [*workflow.critic[task].parameters(), *(value for slot in state.values() for value in slot.values())]
    return torch.cat([value.detach().flatten() for value in values])


def test_in_a_phase_with_a_task_only_its_critics_and_their_optimiser_move():
    workflow, batch = make_sql(tasks=["a", "b"], num_members=4), task_batch(a=torch.clone, b=torch.neg)
    for name, learning in (("a", 0), ("b", 1), ("a", 0)):  # there is momentum after the first
        before = held(workflow, 0), held(workflow, 1)
        for _ in range(3):
            workflow.update_agent(batch, phase=phase(task=name))
        assert torch.equal(held(workflow, 1 - learning), before[1 - learning])
        assert not torch.equal(held(workflow, learning), before[learning])
    assert {float(slot["step"]) for slot in workflow.critics[0].optimizer.state.values()} == {6.0}


def test_a_task_that_comes_late_begins_as_the_first_one_did():
    workflow, batch = make_sql(tasks=["a", "b"], lr=1e-3), task_batch(a=torch.clone, b=torch.neg)
    for _ in range(20):
        workflow.update_agent(batch, phase=phase(task="a"))
    before = parameters(workflow.critic[1])
    workflow.update_agent(batch, phase=phase(task="b"))
    moved = (parameters(workflow.critic[1]) - before).abs()
    assert float(moved.max()) == pytest.approx(1e-3, rel=1e-2)  # Adam's first step is the learning rate, or nothing


@pytest.mark.parametrize(("task", "weights"), [("a", (1, 0)), ("b", (0, 1)), (None, (1, 1))])
def test_the_policy_wants_the_task_of_the_phase_or_the_sum(task, weights):
    workflow = make_sql(tasks=["a", "b"], num_members=4)
    batch, options = task_batch(a=torch.clone, b=torch.neg), {} if task is None else {"task": task}
    workflow._inputs(batch, phase(**options))
    actions = torch.rand(32, 1, 2) * 2 - 1
    lowest_of = [critics(batch["observations"], actions[:, 0]).amin(0) for critics in workflow.critic.tasks]
    expected = weights[0] * lowest_of[0] + weights[1] * lowest_of[1]
    torch.testing.assert_close(workflow._wanted(batch["observations"], actions)[:, 0], expected)


def test_composing_leaves_the_critics_as_they_are():
    workflow = make_sql(tasks=["a", "b"])
    batch = task_batch(a=torch.clone, b=torch.neg)
    workflow.update_agent(batch, phase=phase(task="a"))
    critic, policy = parameters(workflow.critic), parameters(workflow.policy)
    metrics = workflow.update_policy(batch, phase=phase())
    assert torch.equal(parameters(workflow.critic), critic)
    assert not torch.equal(parameters(workflow.policy), policy)
    assert set(metrics) == {"actor_grad_norm", "stein_length", "action_spread"}


def test_moving_the_policy_alone_leaves_the_statistics_as_they_are():
    workflow, batch = make_sql(normalize_observations=True), random_batch(SPEC)
    workflow.update_agent(batch, phase=phase())
    seen = workflow.perception.normalizer.count.clone()
    workflow.update_policy(batch, phase=phase())
    assert torch.equal(workflow.perception.normalizer.count, seen)


def test_a_phase_may_name_the_info_that_is_the_reward():
    workflow, batch = make_sql(), task_batch(north=lambda r: r + 7.0)
    torch.testing.assert_close(workflow._inputs(batch, phase())["rewards"][:, 0], batch["rewards"])
    found = workflow._inputs(batch, phase(task="north"))["rewards"][:, 0]
    torch.testing.assert_close(found, batch["rewards"] + 7.0)
    with pytest.raises(ConfigError, match=r"'nort'; did you mean 'north'"):
        workflow._inputs(batch, phase(task="nort"))


@pytest.mark.parametrize("kind", POLICIES)
def test_every_policy_gives_particles_and_learns(kind):
    workflow, batch = make_sql(policy=kind), random_batch(SPEC)
    particles = workflow.policy(batch["observations"], 5)
    assert particles.shape == (32, 5, 2)
    assert particles.abs().max() < 1.0
    assert not torch.equal(particles[:, 0], particles[:, 1])
    before = parameters(workflow.policy)
    metrics = workflow.update_agent(batch, phase=phase())
    assert not torch.equal(parameters(workflow.policy), before)
    assert all(value.ndim == 0 and not value.requires_grad and torch.isfinite(value) for value in metrics.values())
    acted, extras, _ = workflow.act(
        batch["observations"], None, is_first=torch.ones(32).bool(), explore=True, step=10**6
    )
    assert acted.shape == (32, 2)
    assert 1.0 < acted.abs().max() <= 2.0  # the environment's bounds
    assert extras == {}


def test_few_rows_are_sampled_as_many_are():
    workflow, obs = make_sql(hidden=(16, 16)), torch.randn(8, 3)
    torch.manual_seed(0)
    few = workflow.policy.sample(obs)
    torch.manual_seed(0)
    torch.testing.assert_close(few, workflow.policy(obs, 1).squeeze(1).detach())


def test_greedy_takes_the_best_of_its_samples():
    workflow, obs = make_sql(value_particles=9).requires_grad_(False), torch.randn(4, 3)
    torch.manual_seed(5)
    actions, _, _ = workflow.act(obs, None, is_first=torch.ones(4).bool(), explore=False, step=0)
    torch.manual_seed(5)
    particles = workflow.policy(obs, 9)
    for row in range(4):
        values = [float(lowest(workflow.critic, obs[row], a)) for a in particles[row]]
        best = values.index(max(values))
        torch.testing.assert_close(actions[row], 2.0 * particles[row, best])


def test_first_actions_are_uniform():
    workflow = make_sql(random_steps=100)
    obs, first = torch.zeros(2_000, 3), torch.ones(2_000).bool()
    early, _, _ = workflow.act(obs, None, is_first=first, explore=True, step=99)
    assert early.min() < -1.98
    assert early.max() > 1.98
    assert float(early.std()) == pytest.approx(4 / math.sqrt(12), rel=0.05)


def test_weights_of_a_prioritized_batch_are_answered():
    workflow, batch = make_sql(), random_batch(SPEC)
    update = workflow.update_agent(batch | {"weights": torch.rand(32)}, phase=phase())
    assert isinstance(update, Update)
    assert update.write_back["priorities"].shape == (32,)
    assert (update.write_back["priorities"] >= 0).all()


def test_same_seed_same_parameters_other_seed_others():
    runs = []
    for seed in (3, 3, 4):
        workflow = make_sql(Identity(4, kind="continuous", sizes=(1, 1)).spec, seed=seed)
        train(workflow, Identity(4, kind="continuous", sizes=(1, 1)), env_steps=96, seed=seed)
        runs.append(parameters(workflow))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_compiled_updates_are_the_same():
    batch, found = random_batch(SPEC), []
    for execution in ("eager", "compiled"):
        workflow = make_sql(static=StaticSteps(execution), hidden=(8,), value_particles=4, kernel_particles=4)
        torch.manual_seed(0)
        losses = [float(workflow.update_agent(batch, phase=phase())["critic_loss"]) for _ in range(3)]
        found.append((losses, parameters(workflow)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-4)


def test_resume_is_exact(tmp_path):
    overrides = ["+experiment=sql_multigoal", "algorithm.target_update_every=7", "environment.num_envs=2"]
    assert resumes_exactly(overrides, tmp_path, stop_at=101)


def test_resume_is_exact_while_composing(tmp_path):
    overrides, stop_at = ["+experiment=sql_multigoal_composed"], 165
    assert resumes_exactly(overrides, tmp_path, stop_at=stop_at)
    stopped = run_tiny(overrides, RunDirectory.create(tmp_path, "stopped", 1), stop_at=stop_at)
    assert stopped["scheduler"]["cursor"]["phase"] == 2


def plotting(every):
    hooks = f"[collect,{{update_agent:4}},{{plot_values:{{every_steps:{every}}}}}]"
    return [
        "+experiment=sql_multigoal",
        f"training.phases=[{{name:train,buffer:replay,duration_steps:128,workflow_hooks:{hooks}}}]",
    ]


def pictures(run):
    return {path.name: path.read_bytes() for path in run.media.rglob("*.png")}


def test_pictures_are_saved_and_the_same_after_a_resume(tmp_path):
    whole, halves = (RunDirectory.create(tmp_path, name, 1) for name in ("whole", "halves"))
    run_tiny(plotting(64), whole)
    assert sorted(pictures(whole)) == ["values_000000064.png", "values_000000128.png"]
    state = run_tiny(plotting(64), halves, stop_at=70)
    assert len(pictures(halves)) == 0
    for _ in range(2):  # the second time they are there already
        run_tiny(plotting(64), halves, state=copy.deepcopy(state))
        assert pictures(halves) == pictures(whole)


def test_plots_do_not_disturb_training(tmp_path):
    plain, drawn = (
        run_tiny(plotting(every), RunDirectory.create(tmp_path, f"every{every}", 1)) for every in (10**6, 32)
    )
    assert all(torch.equal(value, drawn["workflow"][name]) for name, value in plain["workflow"].items())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.policy=gaussian"],
            r"actor.input_dim: must be 2 \(2 features and 0 of noise, algorithm.policy=gauss",
        ),
        (["algorithm.kernel_particles=2"], r"algorithm.update_ratio: 0.5 of kernel_particles=2 moves 1"),
        (["algorithm.plot_observations=[]"], r"hook plot_values of phase 'train' needs algorithm.plot_observations"),
        (
            ["algorithm.plot_observations=[[0,0],[0,0,0]]"],
            r"^algorithm.plot_observations: must be vectors as 'tensor/MultiGoal' shows them$",
        ),
        (["algorithm.tasks=[a,b]"], r"components.critic.num_members: 1 for 2 algorithm.tasks"),
        (["algorithm.tasks=[a]", "buffers.replay.n_step=3"], r"buffers.replay.n_step"),
        (["environment.tasks={a:[nord]}"], r"goal in environment.tasks.a 'nord'; did you mean 'north'"),
        (["environment.tasks={a:[]}"], r"environment.tasks.a names no goal"),
        (["algorithm.random_steps=200000", "training.total_timesteps=30"], r"algorithm.random_steps"),
    ],
)
def test_bad_options_are_one_line_at_start(overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        parts_of(["+experiment=sql_multigoal", *overrides])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+experiment=sql_multigoal_finetune", "buffers.replay.n_step=3"], r"^buffers.replay.n_step: must be 1"),
        (
            ["+experiment=sql_multigoal_composed", "algorithm.normalize_observations=true"],
            r"^algorithm.normalize_observations: several algorithm.tasks would share it",
        ),
    ],
)
def test_what_does_not_go_with_tasks_is_one_line_at_start(overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        parts_of(overrides)
    assert "\n" not in str(error.value)


def test_a_phase_with_an_unknown_task_is_refused():
    phases = "[{name:p,task:a,buffer:replay,duration_steps:64,workflow_hooks:[collect,update_agent]}]"
    with pytest.raises(ConfigError, match=r"task of phase 'p' 'a'.*north_or_east"):
        parts_of(["+experiment=sql_multigoal_composed", f"training.phases={phases}"])


FEATURES = ["components.actor.input_dim=9", "components.critic.input_dim=9"]  # 8 and 1 of noise, or of the action
MEMORY = ["+components@components.memory=gru", "components.memory.hidden_dim=8", "buffer@buffers.replay=sequence",
          "buffers.replay.batch_size=4", "buffers.replay.sequence_length=8"]  # fmt: skip
ENCODER = ["+components@components.encoder=mlp", "components.encoder.hidden_dims=[8]"]


@pytest.mark.parametrize("extra", [MEMORY, ENCODER], ids=["memory", "encoder"])
def test_a_run_with_features_of_its_own_learns_them_and_goes_on_exactly(extra, tmp_path):
    options = ["+experiment=sql_pendulum", *FEATURES, *extra]
    first, part = parts_of(options), extra[0].partition("components.")[2].partition("=")[0]
    first.env.close()
    assert resumes_exactly(options, tmp_path, stop_at=150)
    learnt = CheckpointStore(next(tmp_path.glob("whole*")) / "checkpoints").load_newest()
    begun = first.workflow.state_dict()
    moved = [key for key in begun if key.startswith(f"perception.{part}.")]
    assert moved
    assert all(not torch.equal(begun[key], learnt.state["workflow"][key]) for key in moved if "bias" not in key)


def test_discrete_actions_are_refused():
    with pytest.raises(ConfigError, match="SQL does not take the discrete actions"):
        make_sql(EnvSpec("made-up", Box((3,)), Discrete(4)))


@pytest.mark.parametrize("kind", ["implicit", "gaussian"])
def test_identity_is_learned(kind):
    env = Identity(8, kind="continuous", sizes=(1, 1))
    workflow = make_sql(
        env.spec, policy=kind, hidden=(32, 32), num_members=1, lr=3e-3, num_envs=8, gamma=0.0, reward_scale=20.0
    )
    train(workflow, env, env_steps=4_000, updates_per_step=0.25)
    assert score(workflow, Identity(16, kind="continuous", sizes=(1, 1)), explore=True) > 0.85
    assert score(workflow, Identity(16, kind="continuous", sizes=(1, 1))) > 0.93


@pytest.mark.learning
@pytest.mark.parametrize("seed", [11, 12])
def test_all_goals_are_reached(seed):
    env = MultiGoal(4)
    options = {"kernel_particles": 32, "reward_scale": 0.1, "shared_particles": False, "lr": 3e-4}
    workflow = make_sql(env.spec, hidden=(128, 128), num_members=1, seed=seed, **options)
    train(workflow, env, env_steps=20_000, start_at=100, seed=seed)
    obs, reached, first = (env := MultiGoal(200, report_goals=True)).reset(0), torch.zeros(200, 4), torch.ones(200)
    for _ in range(30):
        actions, _, _ = workflow.act(obs, None, is_first=first.bool(), explore=True, step=0)
        step = env.step(actions.detach())
        obs, reached = step.observations, torch.maximum(reached, torch.stack(list(step.infos.values()), -1))
    assert reached.mean(0).min() >= 0.1
