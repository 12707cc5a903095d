"""What each place makes of an order: its command lines to the letter, and the shape of its files."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from rl_lab.core.errors import UsageError
from rl_lab.launching.order import RAY_VERSION, Order
from rl_lab.launching.places.cloud import Ec2, Gce
from rl_lab.launching.places.here import Here
from rl_lab.launching.places.kubernetes import Kubernetes
from rl_lab.launching.places.ray_job import RayJob
from rl_lab.launching.places.slurm import Slurm
from rl_lab.launching.places.ssh import Ssh
from tests.launching.orders import SWEEP, TRAIN, order, seeds

ROOT = Path(__file__).parents[2]
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
RAY = "--address http://127.0.0.1:8265"
VENV = "~/lab-venv/bin/python -m rl_lab"
CLOUD = {"machine": "big", "image": "i", "user": "me", "setup": ("true",)}


def lines(plan):
    return {verb: [shlex.join(command) for command in commands] for verb, commands in plan.commands.items()}


def gce(**options):
    return Gce(**{"project": "p", "zone": "us-central1-a", **CLOUD, **options})


def ec2(**options):
    return Ec2(**{"zone": "us-west-2a", **CLOUD, **options})


def test_here_needs_no_commands():
    assert not Here().plan(order()).commands
    assert not Here().plan(order()).files


def test_ssh_copies_and_launches_there():
    begin = "cd work/a && python3.11 -m rl_lab launch local --again --name mine " + shlex.join(TRAIN)
    asked = {"status": "status", "logs": "logs", "follow": "logs --follow", "down": "down"}
    assert lines(Ssh("me@far", "~/work/a", "python3.11", ("module load cuda",)).plan(order())) == {
        "start": [
            f"{SSH} me@far 'mkdir -p work/a'",
            f"rsync -az -e '{SSH}' '--filter=:- .gitignore' --exclude=.git --exclude=.venv --exclude=__pycache__ "
            "--exclude=/experiments --exclude=/launches ./ me@far:work/a/",
            f"{SSH} me@far 'cd work/a && module load cuda'",
            f"{SSH} me@far {shlex.quote(begin)}",
        ],
        "up": [f"{SSH} me@far {shlex.quote(begin)}"],
        **{
            verb: [f"{SSH} me@far 'cd work/a && python3.11 -m rl_lab launch {words} mine'"]
            for verb, words in asked.items()
        },
        "pull": ["mkdir -p experiments", f"rsync -az -e '{SSH}' me@far:work/a/experiments/mine experiments/"],
    }


def test_ssh_takes_the_run_along_that_goes_on_there():
    start = lines(Ssh("far").plan(order(("resume", "--", "experiments/old"), resumed="experiments/old")))["start"]
    assert f"rsync -azR -e '{SSH}' --ignore-existing ./experiments/old far:rl-lab/mine/" in start


def test_words_survive_two_shells():
    *_, begin = Ssh("far").plan(order()).commands["start"]
    remote = shlex.split(begin[-1])
    assert tuple(remote[remote.index("train") :]) == TRAIN


def test_slurm():
    place = Slurm("gpu", "/opt/lab/bin/python", gpus=2, cpus=8, memory="16G", time="1-00:00:00", account="us")
    plan = place.plan(order())
    script = plan.files["job.sbatch"].splitlines()
    head = "/home/me/project"
    assert [line.removeprefix("#SBATCH --") for line in script if line.startswith("#SBATCH")] == [
        "requeue",
        "job-name=mine",
        "partition=gpu",
        "account=us",
        "nodes=1",
        "ntasks-per-node=1",
        "cpus-per-task=8",
        "gpus-per-node=2",
        "mem=16G",
        "time=1-00:00:00",
        f"chdir={head}",
        f"output={head}/launches/mine/%j.log",
        "open-mode=append",
        "signal=B:USR1@120",
    ]
    assert f"set -- /opt/lab/bin/python -m rl_lab {shlex.join(TRAIN)}" in script
    assert lines(plan) == {
        "start": ["sbatch --parsable launches/mine/job.sbatch"],
        "up": ["sbatch --parsable launches/mine/job.sbatch"],
        "status": ["squeue --me --name=mine '--format=%.18i %.9P %.10T %.12M %.6D %R'"],
        "down": ["scancel --me --name=mine"],
    }


@pytest.mark.parametrize(("what", "workers", "last"), [(order(SWEEP), 4, 3), (seeds(3), 1, 2)])
def test_slurm_arrays(what, workers, last):
    script = Slurm("cpu", "python", workers=workers).plan(what).files["job.sbatch"]
    assert f"#SBATCH --array=0-{last}\n" in script
    assert "launches/mine/%A_%a.log\n" in script


def test_ray_runs_a_script_per_seed():
    place = RayJob("http://127.0.0.1:8265", "/opt/my lab/python", gpus=1, cpus=4)
    plan = place.plan(seeds(2))
    environment = '\'{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "120"}}\''
    submit = [
        f"ray job submit {RAY} --submission-id mine-{number} --no-wait --entrypoint-num-cpus 4 --entrypoint-num-gpus 1 "
        f"--runtime-env-json {environment} -- bash /home/me/project/launches/mine/job.sh {number}"
        for number in (0, 1)
    ]
    delete = [f"sh -c 'ray job delete {RAY} mine-{number} || true'" for number in (0, 1)]
    assert lines(plan) == {
        "start": submit,
        "up": ["sleep 5", *delete, *submit],
        **{
            verb: [f"ray job {word} {RAY} {option}mine-{number}" for number in (0, 1)]
            for verb, word, option in (
                ("status", "status", ""),
                ("logs", "logs", ""),
                ("follow", "logs", "--follow "),
                ("down", "stop", ""),
            )
        },
    }
    assert "'/opt/my lab/python' -m rl_lab train" in plan.files["job.sh"]


def test_ray_lets_a_sweep_find_its_room():
    plan = RayJob("http://127.0.0.1:8265", "python", gpus=1).plan(order(SWEEP))
    assert "sweep --on ray --address auto --dir experiments/mine -- sweeps/a.yaml\n" in plan.files["job.sh"]
    assert "--entrypoint-num-cpus 0 --entrypoint-num-gpus 0" in lines(plan)["start"][0]


def test_clouds_fetch_the_runs_before_the_machines_go():
    begin = f"cd ~/rl-lab/mine && {VENV} launch local --again --name mine {shlex.join(TRAIN)}"
    there, file = "'~/rl-lab/mine/experiments/mine/'", "launches/mine/cluster.yaml"
    room = f"ray exec {file} 'cd ~/rl-lab/mine && rm -rf .returned && mkdir .returned'"
    move = (
        'cd ~/rl-lab/mine && if [ -z "$(ls -A experiments/mine 2>/dev/null)" ]; then mkdir -p experiments/mine && '
        "rmdir experiments/mine && mv .returned experiments/mine; fi && rm -rf .returned"
    )
    fetch = ["mkdir -p experiments/mine/", f"ray rsync-down {file} {there} experiments/mine/"]
    expected = {
        "start": [f"ray up -y {file}", f"ray exec {file} {shlex.quote(begin)}"],
        "up": [
            f"ray up -y {file}",
            "mkdir -p experiments/mine/",
            room,
            f"ray rsync-up {file} experiments/mine/ '~/rl-lab/mine/.returned/'",
            f"ray exec {file} {shlex.quote(move)}",
            f"ray exec {file} {shlex.quote(begin)}",
        ],
        "status": [f"ray exec {file} 'cd ~/rl-lab/mine && {VENV} launch status mine'"],
        "logs": [f"ray exec {file} 'cd ~/rl-lab/mine && {VENV} launch logs mine'"],
        "follow": [f"ray exec {file} 'cd ~/rl-lab/mine && {VENV} launch logs --follow mine'"],
        "pull": fetch,
        "down": [
            f"ray exec {file} 'cd ~/rl-lab/mine && {VENV} launch down mine'",
            *fetch,
            f"ray down -y {file}",
        ],
        "abandon": [f"ray down -y {file}"],
    }
    assert lines(gce().plan(order())) == expected
    assert lines(ec2().plan(order())) == expected


def far_runs(home, plan, verb):
    """Do what a verb does to the runs on a rented machine: its own shell lines, in the place of Ray's ssh."""
    for program, word, _, *what in plan.commands[verb][:-1]:
        if (program, word) == ("ray", "exec"):
            subprocess.run(["bash", "-c", what[0]], env={**os.environ, "HOME": str(home)}, check=True)
        if (program, word) == ("ray", "rsync-up"):
            (home / what[1].removeprefix("~/") / "manifest.json").write_text("of here")


@pytest.mark.parametrize(("verb", "resumed"), [("up", None), ("up", "experiments/mine"), ("start", "experiments/mine")])
@pytest.mark.parametrize("has_runs", [True, False])
def test_runs_of_a_rented_machine_are_newer_and_stay(tmp_path, has_runs, verb, resumed):
    project = tmp_path / "rl-lab" / "mine"
    runs = project / "experiments" / "mine"
    runs.mkdir(parents=True)
    if has_runs:
        (runs / "manifest.json").write_text("of there")
    far_runs(tmp_path, gce().plan(order(resumed=resumed)), verb)
    assert (runs / "manifest.json").read_text() == ("of there" if has_runs else "of here")
    assert os.listdir(project) == ["experiments"]


def test_cluster_files():
    google = yaml.safe_load(gce(gpus=1, gpu_type="nvidia-tesla-t4").plan(order()).files["cluster.yaml"])
    assert google["provider"] == {
        "type": "gcp",
        "region": "us-central1",
        "availability_zone": "us-central1-a",
        "project_id": "p",
        "cache_stopped_nodes": False,
    }
    machine = google["available_node_types"]["head"]["node_config"]
    assert machine["machineType"] == "big"
    assert machine["guestAccelerators"] == [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]
    assert google["file_mounts"] == {"~/rl-lab/mine": "/home/me/project"}
    assert google["max_workers"] == 0

    shared = ec2(nodes=3, directory="/mnt/shared/mine").plan(order(SWEEP))
    amazon = yaml.safe_load(shared.files["cluster.yaml"])
    assert amazon["provider"]["region"] == "us-west-2"
    assert amazon["available_node_types"]["head"]["node_config"]["ImageId"] == "i"
    assert amazon["available_node_types"]["worker"]["min_workers"] == 2 == amazon["max_workers"]
    assert "cd /mnt/shared/mine && " in lines(shared)["start"][-1]
    assert "sweep --on ray --address auto" in lines(shared)["start"][-1]
    copied = "mkdir -p /mnt/shared/mine && rsync -a ~/rl-lab/mine/ /mnt/shared/mine/"  # when it has been mounted
    assert amazon["file_mounts"] == {"~/rl-lab/mine": "/home/me/project"}
    for verb in ("start", "up"):
        assert lines(shared)[verb][1] == f"ray exec launches/mine/cluster.yaml '{copied}'"
    for cluster in (google, amazon):  # nobody from outside talks to Ray
        assert any("--dashboard-host=127.0.0.1" in line for line in cluster["head_start_ray_commands"])
        assert "RAY_AUTH_MODE" not in str(cluster)


@pytest.mark.parametrize("setup", [(), ("sudo mount /mnt",)])
def test_rented_machines_have_ray_and_the_lab(setup):
    active = ". ~/lab-venv/bin/activate && cd ~/rl-lab/mine &&"
    ours = f"{active} pip install -q -c constraints.txt 'ray[default]' '.[mujoco,tune,ray]'"
    cluster = yaml.safe_load(gce(setup=setup).plan(order(project=ROOT)).files["cluster.yaml"])
    more = [f"{active} {line}" for line in setup]
    assert cluster["setup_commands"] == ["python3 -m venv ~/lab-venv", ours, *more]
    elsewhere = yaml.safe_load(gce(setup=("pip install rl-lab",)).plan(order()).files["cluster.yaml"])
    rays = f"{active} pip install -q 'ray[default]=={RAY_VERSION}'"
    assert elsewhere["setup_commands"] == ["python3 -m venv ~/lab-venv", rays, f"{active} pip install rl-lab"]
    assert cluster["rsync_exclude"] == [".git", ".venv", "__pycache__", "/experiments", "/launches"]


@pytest.mark.ray
@pytest.mark.parametrize("make", [gce, ec2])
@pytest.mark.parametrize("nodes", [1, 3])
def test_rays_own_validator(make, nodes):
    pytest.importorskip("ray")
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    plan = make(nodes=nodes, directory="/mnt/mine").plan(order(SWEEP))
    content = yaml.safe_load(plan.files["cluster.yaml"])
    validate_config(prepare_config(content))
    with pytest.raises(ValidationError):
        validate_config(prepare_config({**content, "nonsense": 1}))


def test_kubernetes_job():
    plan = Kubernetes("lab:1", "runs", "rl", gpus=1, cpus=4, memory="16Gi").plan(seeds(2))
    job = yaml.safe_load(plan.files["job.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["metadata"] == {"name": "mine", "namespace": "rl", "labels": {"rl-lab/launch": "mine"}}
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # what a podFailurePolicy asks for
    assert pod["terminationGracePeriodSeconds"] == 120
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1},
        "limits": {"memory": "16Gi", "nvidia.com/gpu": 1},
    }
    assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
        "runs": "/lab/experiments",
        "shm": "/dev/shm",
    }
    assert {volume["name"] for volume in pod["volumes"]} == {"runs", "shm"}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}
    kubectl, labels = "kubectl --namespace rl", "-l rl-lab/launch=mine"
    logs = f"{kubectl} logs {labels} --max-log-requests=100 --prefix --tail=100"
    assert lines(plan) == {
        "start": [f"{kubectl} apply -f launches/mine/job.yaml"],
        "up": [
            f"{kubectl} delete job mine --ignore-not-found --wait",
            f"{kubectl} apply -f launches/mine/job.yaml",
        ],
        "status": [f"{kubectl} get jobs,pods {labels}"],
        "logs": [logs],
        "follow": [f"{logs} --follow"],
        "pull": [
            "mkdir -p experiments/mine",
            f"{kubectl} apply -f launches/mine/reader.yaml",
            f"{kubectl} wait --for=condition=Ready pod/mine-reader --timeout=300s",
            f"{kubectl} cp rl/mine-reader:/lab/experiments/mine experiments/mine",
            f"{kubectl} delete pod mine-reader --ignore-not-found --wait=false",
        ],
        "down": [f"{kubectl} delete job mine --ignore-not-found --wait"],
    }


def test_a_sweep_on_several_pods_is_a_ray_job():
    job = yaml.safe_load(Kubernetes("lab:1", "runs", nodes=3).plan(order(SWEEP)).files["job.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"]["entrypoint"] == (
        "env -C /lab python -m rl_lab sweep --on ray --address auto --dir experiments/mine -- sweeps/a.yaml"
    )
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == 2
    assert f"ray=={RAY_VERSION}\n" in (ROOT / "constraints.txt").read_text()
    for group in (cluster["headGroupSpec"], workers):
        assert group["template"]["spec"]["containers"][0]["image"] == "lab:1"


@pytest.mark.parametrize(
    ("place", "what", "message"),
    [
        (Ssh("-oProxyCommand=evil"), order(), "--host '-oProxyCommand=evil' must be a name"),
        (Ssh("far", "a b"), order(), "--dir 'a b' must be letters"),
        (Ssh("far", "~other/x"), order(), "--dir '~other/x' must be letters"),
        (Ssh("far", "a/~/b"), order(), "--dir 'a/~/b' must be letters"),
        (Ssh("far", None, "python; rm"), order(), "--python 'python; rm' must be"),
        (Slurm("gpu", "python", time="tomorrow"), order(), "--time 'tomorrow' must be minutes"),
        (Slurm("gpu gpu", "python"), order(), "--partition 'gpu gpu' must be one word"),
        (Slurm("gpu", "python", nodes=2), order(SWEEP), "a sweep is shared by jobs: --workers 2"),
        (Slurm("gpu", "python", nodes=2), seeds(2), "but 2 seeds are given"),
        (Slurm("gpu", "python", workers=2), order(), "only lab sweep and lab tune are shared"),
        (RayJob("nowhere at all", "python"), order(), "--address 'nowhere at all' must be that of a dashboard"),
        (gce(zone="us"), order(), "--zone 'us' must be a zone"),
        (gce(gpus=1), order(), "--gpu-type is missing"),
        (gce(setup=()), order(), "--setup is missing: /home/me/project is no checkout"),
        (gce(extras="a; b"), order(), "--extras 'a; b' must be names"),
        (ec2(zone="us-west-2"), order(), "--zone 'us-west-2' must be an availability zone"),
        (ec2(nodes=2, directory="/mnt/a"), order(), "lab train runs on one machine"),
        (ec2(nodes=2), order(SWEEP), "--dir must be a path that all machines see"),
        (Kubernetes("i", "c", nodes=2), order(), "lab train runs in one pod"),
        (Kubernetes("i", "c", workers=2), order(), "only lab sweep and lab tune are shared"),
    ],
)
def test_what_a_place_refuses(place, what: Order, message):
    with pytest.raises(UsageError) as caught:
        place.plan(what)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
