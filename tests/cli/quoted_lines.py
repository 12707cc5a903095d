"""Every command line that the five systems' manuals quote, and the `lab` command that it is."""

ENGINEAI = "python engineai_rl_workspace/scripts"
TASK = "examples.development --algorithm SAC --universe gym --domain HalfCheetah --task v3"
RESULTS = (
    "/ray_results/gym/HalfCheetah/v3/2018-12-12T16-48-37-my-sac-experiment-0/"
    "mujoco-runner_0_seed=7585_2018-12-12_16-48-37xuadh9vd/checkpoint_1000/"
)
PLACE = "transport.kind=network transport.address=127.0.0.1:5588 environment.num_envs=1"

QUOTED = {
    # EngineAI
    f"{ENGINEAI}/train.py --exp_name your_experiment_name": "lab train +experiment=your_experiment_name",
    f"{ENGINEAI}/train.py --exp_name your_experiment_name --resume": "lab resume your_experiment_name",
    f"{ENGINEAI}/train.py --exp_name rotunbot_flat_ppo --sub_exp_name test_run --num_envs 4096 --max_iterations 1500": (
        "lab train +experiment=rotunbot_flat_ppo environment.num_envs=4096 training.total_timesteps=147456000 "
        "'experiment.tags=[test_run]'"  # 1500 x 4096 x 24
    ),
    f"{ENGINEAI}/play.py --exp_name your_experiment_name --resume": "lab play your_experiment_name",
    f"{ENGINEAI}/play.py --exp_name a1_flat_ppo --resume --use_joystick": "lab play quadruped_flat_ppo --joystick",
    f"{ENGINEAI}/play.py --exp_name pm01_flat_ppo --resume --video --record_length 500": (
        "lab play biped_pm01_flat_ppo --video --record-length 500"
    ),
    f"{ENGINEAI}/export_policy.py --exp_name your_experiment_name --resume": "lab export your_experiment_name",
    f"torchrun --nproc_per_node=2 {ENGINEAI.split()[1]}/train.py --exp_name rotunbot_flat_ppo": (
        "lab train +experiment=rotunbot_flat_ppo experiment.devices=2"
    ),
    # Softlearning
    f"softlearning run_example_local {TASK} --exp-name my-experiment --checkpoint-frequency 1000": (
        "lab train +experiment=sac_halfcheetah experiment.name=my-experiment training.checkpoint_frequency=1000000"
    ),
    f"softlearning run_example_dry {TASK}": "lab train +experiment=sac_halfcheetah --cfg job",
    f"softlearning run_example_debug {TASK}": "lab train +experiment=sac_halfcheetah debug=true",
    f"softlearning run_example_local {TASK} --cpus 4 --gpus 1": "lab train +experiment=sac_halfcheetah",
    "python -m examples.development.simulate_policy "
    f'{RESULTS} --max-path-length 1000 --num-rollouts 1 --render-kwargs \'{{"mode": "human"}}\'': (
        f"lab play {RESULTS[:-1]} --video --record-length 1000"
    ),
    f"softlearning launch_example_gce {TASK}": "lab launch gce train +experiment=sac_halfcheetah",
    f"softlearning launch_example_ec2 {TASK}": "lab launch ec2 train +experiment=sac_halfcheetah",
    f"softlearning run_example_cluster {TASK}": "lab launch ray train +experiment=sac_halfcheetah",
    # Commands of Softlearning that its manual only names
    f"softlearning launch_example_local {TASK}": "lab train +experiment=sac_halfcheetah",
    f"softlearning launch_example_dry {TASK}": "lab train +experiment=sac_halfcheetah --cfg job",
    f"softlearning launch_example_debug {TASK}": "lab train +experiment=sac_halfcheetah debug=true",
    f"softlearning launch_example_cluster {TASK}": "lab launch ray train +experiment=sac_halfcheetah",
    # The mono-repo
    "python scripts/train.py --config configs/experiments/ppo_cartpole.yaml": "lab train +experiment=ppo_cartpole",
    "python scripts/train.py --config configs/quickstart/ppo_cartpole.yaml": "lab train +experiment=ppo_cartpole",
    "python scripts/train.py --resume experiments/ppo_cartpole_2024/": "lab resume experiments/ppo_cartpole_2024/",
    "python scripts/train.py --config configs/experiments/ppo_cartpole.yaml --seed 1,2,3,4,5": (
        "lab train +experiment=ppo_cartpole --seed 1,2,3,4,5"
    ),
    "python scripts/train.py --config configs/experiments/ppo_cartpole.yaml --debug --total_timesteps 1000": (
        "lab train +experiment=ppo_cartpole debug=true training.total_timesteps=1000"
    ),
    "python scripts/evaluate.py experiments/demo --episodes 5": "lab evaluate experiments/demo --episodes 5",
    "python scripts/evaluate.py": "lab evaluate",
    "python scripts/sweep.py --config configs/sweeps/ppo_sweep.yaml": "lab sweep ppo_sweep",
    "python scripts/analyze.py exp1 exp2": "lab runs compare exp1 exp2",
    "python -m rlrepo list --filter algorithm=ppo --sort reward": "lab runs list algorithm=ppo --sort eval/return",
    "python -m rlrepo compare exp1 exp2 exp3 --metrics reward,loss": (
        "lab runs compare exp1 exp2 exp3 --metric eval/return --metric 'train/*loss'"
    ),
    "python -m rlrepo export exp1 --format latex": "lab runs export exp1 --format latex",
    "python -m rlrepo cleanup --keep-best 10 --keep-recent 30": "lab runs clean --keep-best 10 --keep-recent 30",
    # RL Lab
    "python scripts/train.py +experiment=your_algorithm_env": "lab train +experiment=your_algorithm_env",
    "python scripts/train.py +experiment=og_wm_carracing": "lab train +experiment=world_models_car_racing",
    "python scripts/train.py +experiment=og_wm_carracing experiment.seed=123": (
        "lab train +experiment=world_models_car_racing experiment.seed=123"
    ),
    "python scripts/train.py +experiment=og_wm_carracing training.resume_path=path/to/checkpoint.pt": (
        "lab train +experiment=world_models_car_racing training.resume_path=path/to/checkpoint.pt"
    ),
    "python scripts/train.py +experiment=og_wm_carracing --cfg job": (
        "lab train +experiment=world_models_car_racing --cfg job"
    ),
    "python scripts/train.py +experiment=your_exp --cfg job": "lab train +experiment=your_exp --cfg job",
    "python scripts/train.py +experiment=your_exp --cfg job --package _global_": (
        "lab train +experiment=your_exp --cfg job"
    ),
    # Hi-ORS
    "python train_rlpd.py algo=sac_pi0 task=dobot_pnp unique_identifier=mine checkpoint_path=/path/to/ckpt "
    "learner=true actor=false training.num_gpus=4 training.mixed_precision=bf16 logging.logger=wandb": (
        f"lab learner +experiment=sac_pi0_pick_and_place {PLACE} experiment.name=mine "
        "training.resume_path=/path/to/ckpt experiment.precision=bfloat16 logging.wandb=true"
    ),
    "python train_rlpd.py algo=rlpd task=insertion actor=true": f"lab actor +experiment=rlpd_insertion {PLACE}",
    "python train_rlpd.py algo=rlpd task=dobot_pnp learner=true seed=1 batch_size=64 replay_buffer_capacity=5000 "
    "random_steps=0 log_period=10 checkpoint_period=500 buffer_period=500 eval_n_trajs=100 "
    "training.gradient_accumulation_steps=1 logging.project=ours logging.entity=us": (  # keys of its base config
        f"lab learner +experiment=rlpd_pick_and_place {PLACE} experiment.seed=1 logging.every_updates=10 "
        "training.checkpoint_updates=500 training.num_eval_episodes=100 buffers.replay.batch_size=64 "
        "buffers.replay.parts.online.into.capacity=5000"
    ),
    "bash run_actor.sh": f"lab actor +experiment=sac_pi0_pick_and_place {PLACE}",
    "bash run_learner.sh": f"lab learner +experiment=sac_pi0_pick_and_place {PLACE}",
    "bash run_actor_data_collection.sh": f"lab actor +experiment=collect_pick_and_place {PLACE}",
    "bash run_learner_data_collection.sh": f"lab learner +experiment=collect_pick_and_place {PLACE}",
    "bash run_actor_reject_sampling.sh": f"lab actor +experiment=hiors_pick_and_place_pixels {PLACE}",
    "bash run_learner_reject_sampling.sh": f"lab learner +experiment=hiors_pick_and_place_pixels {PLACE}",
    "bash run_learner_sft.sh": f"lab learner +experiment=sft_pick_and_place_pixels {PLACE}",
    "bash run_actor_eval.sh": "lab evaluate --episodes 100",
    "bash run_actor_eval.sh checkpoint_path=mine": "lab evaluate mine --episodes 100",
    "bash start_dobot.sh": "lab start +experiment=sac_pi0_pick_and_place environment.num_envs=1",
    "bash train_reward.sh": "lab train +experiment=reward_classifier_insertion",
    "python -m lerobot.scripts.visualize_dataset --repo-id replay_buffer --root lerobot/dobot/replay_buffer "
    "--local-files-only 1 --mode distant --ws-port 9087 --episode-index 0": (
        "lab data export lerobot/dobot/replay_buffer replay_buffer_episode_0.html --to html --episodes 0"
    ),
    "python tools/merge_video.py --video_folder examples/experiments/dobot_pnp/videos "
    "--output_path examples/experiments/dobot_pnp/output.mp4 --fps 5": (
        "lab data splice examples/experiments/dobot_pnp/videos examples/experiments/dobot_pnp/output.mp4 --fps 5"
    ),
}
