"""Kubernetes: a Job whose pods go on where others were evicted; a sweep on several nodes is a RayJob of KubeRay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from rl_lab.core.errors import UsageError
from rl_lab.launching.order import (
    GRACE_S,
    RAY_VERSION,
    SHARED_QUEUE,
    TAIL,
    Command,
    Order,
    Plan,
    choose_task,
    lab,
    on_ray,
    workers_of,
)

MANIFEST = "job.yaml"
READER = "reader.yaml"
LABEL = "rl-lab/launch"
WORKDIR = "/lab"  # of the image, see the Dockerfile
RETRIES = 20  # of a run that dies: it goes on from its checkpoint
BAD_USAGE = 2  # exit code of a command that no retry mends


@dataclass(frozen=True)
class Kubernetes:
    """A cluster that `kubectl` talks to.

    Attributes:
        image: With the project in `/lab` and the lab installed (Dockerfile).
        claim: Persistent volume claim that holds the runs.
        namespace: Of all objects.
        gpus: Of a pod.
        cpus: Of a pod.
        memory: Of a pod.
        workers: Pods at once that share a sweep; the claim must be writable by all.
        nodes: More than one: a Ray cluster of so many pods runs the sweep.
    """

    image: str
    claim: str
    namespace: str = "default"
    gpus: int = 0
    cpus: int = 1
    memory: str = "8Gi"
    workers: int = 1
    nodes: int = 1

    shares_files = False

    def plan(self, order: Order) -> Plan:
        """Return the manifests and what is said to `kubectl`."""
        if self.nodes > 1 and order.command not in SHARED_QUEUE:
            raise UsageError(
                f"k8s --nodes {self.nodes}: lab {order.command} runs in one pod (sweep and tune in several)"
            )
        is_ray = self.nodes > 1
        kind = "rayjob" if is_ray else "job"
        manifest = self._ray_job(on_ray(order)) if is_ray else self._job(order)
        apply, chosen = self._kubectl("apply", "-f", order.file(MANIFEST)), f"{LABEL}={order.name}"
        delete = self._kubectl("delete", kind, order.name, "--ignore-not-found", "--wait")
        tail = ("--prefix", f"--tail={TAIL}")
        spoken = (f"job/{order.name}",) if is_ray else ("-l", chosen, "--max-log-requests=100")
        logs = self._kubectl("logs", *spoken, *tail)
        return Plan(
            files={MANIFEST: _dump(manifest), READER: _dump(self._reader(order))},
            commands={
                "start": [apply],
                "up": [delete, apply],
                "status": [self._kubectl("get", f"{kind}s,pods", "-l", chosen)],
                "logs": [logs],
                "follow": [[*logs, "--follow"]],
                "pull": self._pull(order),
                "down": [delete],
            },
        )

    def _kubectl(self, *words: str) -> Command:
        return ["kubectl", "--namespace", self.namespace, *words]

    def _pull(self, order: Order) -> Sequence[Command]:
        """Return the commands that copy the runs through a pod which has nothing else to do."""
        reader, source = f"{order.name}-reader", f"{self.namespace}/{order.name}-reader:{WORKDIR}/{order.results}"
        return [
            ["mkdir", "-p", order.results],
            self._kubectl("apply", "-f", order.file(READER)),
            self._kubectl("wait", "--for=condition=Ready", f"pod/{reader}", "--timeout=300s"),
            self._kubectl("cp", source, order.results),
            self._kubectl("delete", "pod", reader, "--ignore-not-found", "--wait=false"),
        ]

    def _metadata(self, order: Order, name: str | None = None) -> dict[str, Any]:
        return {"name": name or order.name, "namespace": self.namespace, "labels": {LABEL: order.name}}

    def _job(self, order: Order) -> dict[str, Any]:
        count = workers_of("k8s", order, self.workers)
        script = "\n".join([*choose_task(order, "python", "JOB_COMPLETION_INDEX"), 'exec "$@"'])
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}  # evictions are no failures
        wrong = {"operator": "In", "values": [BAD_USAGE], "containerName": "lab"}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self._metadata(order),
            "spec": {
                "completionMode": "Indexed",
                "completions": count,
                "parallelism": count,
                "backoffLimit": RETRIES,
                "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": wrong}, ignored]},
                "template": self._pod(order, ["bash", "-c", script]),
            },
        }

    def _ray_job(self, order: Order) -> dict[str, Any]:
        """Return a RayJob: Ray's head and its workers in pods, and the sweep as what they are there for."""
        start: dict[str, str] = {}
        worker = {
            "groupName": "workers",
            "replicas": self.nodes - 1,
            "minReplicas": self.nodes - 1,
            "maxReplicas": self.nodes - 1,
            "rayStartParams": start,
            "template": self._pod(order, None, restart=None),
        }
        head = {"rayStartParams": start, "template": self._pod(order, None, restart=None)}
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": self._metadata(order),
            "spec": {
                # One command: of several, KubeRay's submitter would run all but the first itself.
                "entrypoint": f"env -C {WORKDIR} {lab('python', order.words)}",
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": {"rayVersion": RAY_VERSION, "headGroupSpec": head, "workerGroupSpecs": [worker]},
            },
        }

    def _pod(self, order: Order, command: list[str] | None, restart: str | None = "Never") -> dict[str, Any]:
        amounts: dict[str, Any] = {"cpu": str(self.cpus), "memory": self.memory}
        gpus = {"nvidia.com/gpu": self.gpus} if self.gpus else {}
        container: dict[str, Any] = {
            "name": "lab",
            "image": self.image,
            "workingDir": WORKDIR,
            **({"command": command} if command is not None else {}),
            "resources": {"requests": {**amounts, **gpus}, "limits": {"memory": self.memory, **gpus}},
            "volumeMounts": [self._mount(order), {"name": "shm", "mountPath": "/dev/shm"}],
        }
        shared = {"name": "shm", "emptyDir": {"medium": "Memory"}}  # workers of environments share memory
        spec: dict[str, Any] = {
            **({"restartPolicy": restart} if restart is not None else {}),
            "terminationGracePeriodSeconds": GRACE_S,
            "containers": [container],
            "volumes": [self._volume(), shared],
        }
        return {"metadata": {"labels": {LABEL: order.name}}, "spec": spec}

    def _reader(self, order: Order) -> dict[str, Any]:
        container = {
            "name": "reader",
            "image": self.image,
            "command": ["sleep", "3600"],
            "volumeMounts": [self._mount(order)],
        }
        spec = {"restartPolicy": "Never", "containers": [container], "volumes": [self._volume()]}
        metadata = self._metadata(order, f"{order.name}-reader")
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "labels": {}}, "spec": spec}

    def _mount(self, order: Order) -> dict[str, str]:
        return {"name": "runs", "mountPath": f"{WORKDIR}/{PurePosixPath(order.results).parts[0]}"}

    def _volume(self) -> dict[str, Any]:
        return {"name": "runs", "persistentVolumeClaim": {"claimName": self.claim}}


def _dump(manifest: dict[str, Any]) -> str:
    return yaml.safe_dump(manifest, sort_keys=False)
