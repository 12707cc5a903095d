"""Command lines of the five systems as the `lab` commands that they are, and what is said where there is none."""

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.quoted_lines import ENGINEAI, QUOTED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("line", QUOTED)
def test_what_a_command_line_is(line, lab):
    result = lab("compat", "--dry-run", *shlex.split(line))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == QUOTED[line]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("python scripts/play.py --exp_name a --use_joystik", "did you mean '--use_joystick'?"),
        ("python scripts/play.py --resume", "--exp_name is missing"),
        ("python scripts/train.py --exp_name a --num_envs", "--num_envs needs a value"),
        ("python scripts/train.py --exp_name a --resume=yes", "--resume takes no value"),
        ("python scripts/train.py --exp_name a word", "cannot read 'word'"),
        ("python scripts/train.py --exp_name a --resume --checkpoint 500", "from the newest checkpoint"),
        ("python scripts/train.py --exp_name a --logger neptune", "unknown --logger 'neptune'"),
        ("python scripts/train.py --exp_name ppo_cartpole --max_iterations many", "must be a whole number"),
        ("python scripts/train.py --exp_name nothing --max_iterations 3", "unknown experiment 'nothing'"),
        ("python scripts/train.py --config configs/experiments/my_experiment.yaml", "no such file, and unknown"),
        ("python scripts/sweep.py --config configs/sweeps/ppo_swep.yaml", "did you mean 'ppo_sweep'?"),
        ("python scripts/tune.py", "unknown program 'tune.py'"),
        ("python", "no command line is given"),
        ("softlearning run_example_locale examples.development", "did you mean 'run_example_local'?"),
        ("softlearning run_example_local examples.developement --domain Ant --task v3", "unknown example"),
        ("softlearning run_example_local examples.development --universe robosuite", "unknown --universe"),
        ("softlearning run_example_local examples.development --algorithm TD3", "unknown --algorithm 'TD3'"),
        ("softlearning run_example_local examples.development --task v3", "--domain is missing"),
        ("softlearning run_example_dry examples.development --domain Ant --task v9", "unknown --task of Ant 'v9'"),
        (
            "softlearning run_example_dry examples.development --domain Ant --task Delayed-v0",
            "(choices: v2, v3, v4, v5)",
        ),
        ("softlearning run_example_dry examples.development --domain MultiGoal --task v3", "(choices: Default-v0)"),
        ("python -m examples.development.simulate_policy", "one checkpoint or run is needed"),
        ("python -m examples.development.simulate_policy run --render-kwargs {", "must be JSON"),
        ("python train_rlpd.py algo=sac_pi0", "one of learner=true and actor=true"),
        ("python train_rlpd.py learner=true lr=3", "unknown key of train_rlpd.py 'lr'"),
        ("bash start_dobot.sh ip=10.0.0.1", "unknown key of start_dobot.sh 'ip'"),
        ("bash train_reward.sh algo=rlpd", "unknown key of train_reward.sh 'algo'"),
        ("python tools/merge_video.py --video_folder a", "--output_path is missing"),
        ("python -m lerobot.scripts.visualize_dataset --root a", "--repo-id is missing"),
        ("python train_rlpd.py --learner", "key=value was expected"),
        ("python train_rlpd.py learner=true logging.logger=disk", "unknown logging.logger 'disk'"),
        ("python -m rlrepo lst", "did you mean 'list'?"),
        ("torchrun --nproc_per_node=all train.py", "must be a number"),
        ("torchrun --nnodes=2 train.py", "only --standalone"),
    ],
)
def test_what_cannot_be_read_is_one_line(line, message, lab, fails):
    assert message in fails(lab("compat", "--dry-run", *shlex.split(line)), 2)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "train.py --exp_name a1_rough_ppo --run_exist --load_run mine --run_name next --log_root logs --video "
            "--record_interval 10 --num_envs 8 --rl_device cpu --logger wandb --headless",
            "lab train --from-run mine environment.num_envs=8 experiment.device=cpu logging.wandb=true "
            "training.video_frequency=1920 experiment.root=logs experiment.name=next",  # 10 x 8 x 24
        ),
        (
            "play.py --exp_name a1_flat_ppo --load_run mine --checkpoint best --test_length 50 --log_root logs",
            "lab play mine --checkpoint best --root logs --testers all --test-length 50",
        ),
        ("train.py --exp_name a1_flat_ppo --resume --load_run -1", "lab resume quadruped_flat_ppo"),
        ("train.py --exp_name pm01_flat_ppo --run_exist --load_run -1", "lab train --from-run biped_pm01_flat_ppo"),
        (
            "export_policy.py --exp_name sa01_rough_ppo --checkpoint 100",
            "lab export biped_sa01_rough_ppo --checkpoint cycle:100",
        ),
        (
            "softlearning run_example_local examples.development --domain Pendulum --task v0 --algorithm SQL "
            "--video-save-frequency 5 --checkpoint-frequency 0 --num-samples 3 --run-eagerly true",
            "lab train +experiment=sql_pendulum training.checkpoint_frequency=null training.video_frequency=5000 "
            "experiment.compile=eager --seed 1,2,3",
        ),
        (
            "softlearning run_example_local examples.development --universe dm_control --domain humanoid --task stand",
            "lab train +experiment=sac_dmc_walker_walk environment.name=dm_control/humanoid/stand "
            "experiment.name=sac_humanoid_stand",
        ),
        (
            "softlearning run_example_local examples.development --domain HalfCheetah --task v4",
            "lab train +experiment=sac_halfcheetah environment.name=gym/HalfCheetah/v4 "
            "experiment.name=sac_halfcheetah_v4",
        ),
        (
            "softlearning run_example_local examples.development --universe dm_control --domain ball_in_cup "
            "--task catch",
            "lab train +experiment=sac_dmc_cup_catch",
        ),
        ("softlearning run_example_local examples.multi_goal", "lab train +experiment=sql_multigoal"),
        (
            "softlearning launch_example_gce examples.multi_goal --override-cluster-name mine --tmux true --project p "
            "--zone us-east1-b --machine e2 --setup 'pip install rl-lab' --image i --dry-run",
            "lab launch gce --name mine --project p --image i --zone us-east1-b --machine e2 "
            "--setup 'pip install rl-lab' --dry-run train +experiment=sql_multigoal",
        ),
        (
            "python -m examples.development.simulate_policy runs/a/checkpoints/000003 --num-rollouts 4",
            "lab evaluate runs/a --checkpoint runs/a/checkpoints/000003 --episodes 4",
        ),
        (
            "train_rlpd.py algo=rlpd learner=true ip=10.0.0.1 batch_size=64 replay_buffer_capacity=9 log_period=5 "
            "checkpoint_period=7 logging.logger=wandb logging.project=ours eval_n_trajs=3",
            "lab learner +experiment=rlpd_pick_and_place transport.kind=network transport.address=10.0.0.1:5588 "
            "environment.num_envs=1 logging.every_updates=5 training.checkpoint_updates=7 "
            "training.num_eval_episodes=3 logging.wandb=ours buffers.replay.batch_size=64 "
            "buffers.replay.parts.online.into.capacity=9",
        ),
        (
            "run_learner_sft.sh batch_size=16 seed=3",
            "lab learner +experiment=sft_pick_and_place_pixels transport.kind=network "
            "transport.address=127.0.0.1:5588 environment.num_envs=1 experiment.seed=3 "
            "buffers.demonstrations.into.batch_size=16",
        ),
        ("run_actor_eval.sh eval_n_trajs=7", "lab evaluate --episodes 7"),
        (
            "visualize_dataset.py --repo-id me/data --episode-index 3 --output-dir pages",
            "lab data export me/data pages/me_data_episode_3.html --to html --episodes 3",
        ),
        ("train.py --config conf/experiment/tiny.yaml", "lab train +experiment=tiny --config-dir conf"),
    ],
)
def test_further_flags(line, command, lab):
    result = lab("compat", "--dry-run", *shlex.split(line))
    assert result.stdout.strip() == command, result.stderr


def test_a_file_of_a_sweep_that_is_there_is_taken(lab):
    Path("mine.yaml").write_text("base_config: ppo_cartpole\nseeds: 2\n")
    assert lab("compat", "--dry-run", "sweep.py", "--config", "mine.yaml").stdout == "lab sweep mine.yaml\n"


def test_gpus_of_a_learner_are_told(lab):
    result = lab("compat", "--dry-run", "train_rlpd.py", "algo=rlpd", "learner=true", "training.num_gpus=4")
    assert result.stderr.startswith("note: training.num_gpus has no effect: a learner is one process on one GPU")


def test_another_machine_s_learner_needs_certificates(lab):
    result = lab("compat", *shlex.split("train_rlpd.py algo=data_collection actor=true ip=10.0.0.1"))
    assert result.exit_code == 2
    assert "certificate" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["dreamer_ataripong", "diffusion_halfcheetah"])
def test_experiments_without_a_counterpart_are_refused(name, lab):
    result = lab("compat", "python", "scripts/train.py", f"+experiment={name}")
    assert result.exit_code == 2
    assert f"unknown experiment '{name}'" in result.stderr.splitlines()[-1]


def test_flags_without_effect_are_told(lab):
    result = lab("compat", "--dry-run", *shlex.split("play.py --exp_name a1_flat_ppo --headless --pipeline gpu"))
    told = result.stderr.strip().splitlines()
    assert told == [
        "note: --headless has no effect: a window is opened by lab play alone",
        "note: --pipeline has no effect: there is no Isaac Gym",
        "note: a1_flat_ppo: the lab's quadruped has the numbers of a Go2",
    ]


def test_the_experiments_that_shims_name_are_there():
    from rl_lab.cli.shims import engineai, hiors, hydra_lab, softlearning
    from rl_lab.config.trees import group_files

    named = {*engineai.EXPERIMENTS.values(), *hydra_lab.EXPERIMENTS.values(), *hiors.EXPERIMENTS.values()}
    named |= {f"sac_{end}" for end in softlearning.GYM.values() if end != "multigoal"}
    assert named <= {*group_files("experiment")}


def test_a_robot_is_trained_resumed_and_played_in_the_words_of_the_workspace(lab):
    """For real: 4 worlds, one rollout, a second one, and five steps on film."""
    small = "--exp_name rotunbot_flat_ppo --num_envs 4 --log_root logs"
    first = lab("compat", *shlex.split(f"{ENGINEAI}/train.py {small} --max_iterations 1 --seed 3"))
    assert first.exit_code == 0, first.stderr
    said = "lab train +experiment=rotunbot_flat_ppo environment.num_envs=4 experiment.seed=3"
    assert first.stderr.startswith(f"{said} training.total_timesteps=96 experiment.root=logs\n")
    (run,) = Path("logs").iterdir()
    resumed = lab("compat", *shlex.split(f"{ENGINEAI}/train.py {small} --resume --max_iterations 2"))
    assert resumed.exit_code == 0, resumed.stderr
    assert '"env_steps": 192' in lab("runs", "show", run, "--json").stdout
    film = "--video --record_length 5 --frame_size 64,48"
    flags = f"--exp_name rotunbot_flat_ppo --log_root logs --resume {film}"
    played = lab("compat", *shlex.split(f"{ENGINEAI}/play.py {flags}"))
    assert played.exit_code == 0, played.stderr
    assert [path.name for path in (run / "media").iterdir()] == ["play_000000192.mp4"]


def test_programs_of_their_own_names(tmp_path):
    """`python -m rlrepo`, the console script and what lies in scripts/ and examples/ all lead to `lab compat`."""
    words = [sys.executable, "-m", "rlrepo", "list", "--root", "nowhere"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == "lab runs list --root nowhere\n"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["softlearning"] == "rl_lab.cli.compat:softlearning"
    names = ("train", "play", "export_policy", "evaluate", "sweep", "analyze")
    thin = [ROOT / "scripts" / f"{name}.py" for name in names]
    thin += [ROOT / "examples" / name for name in ("train_rlpd.py", "development/simulate_policy.py")]
    for path in thin:
        assert path.read_text().endswith("from rl_lab.cli.compat import run\n\nrun(sys.argv)\n"), path


@pytest.mark.parametrize(
    ("task", "note"), [("v3", "note: --task v3: Swimmer-v5 stands for that version\n"), ("v5", "")]
)
def test_a_retired_version_is_said(task, note, lab):
    line = f"softlearning run_example_local examples.development --domain Swimmer --task {task}"
    result = lab("compat", "--dry-run", *line.split())
    assert "lab train +experiment=sac_swimmer\n" in result.output
    assert "".join(each for each in result.stderr.splitlines(keepends=True) if "--task" in each) == note
