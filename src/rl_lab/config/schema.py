"""The options every run has: one declaration each, with its type, default, range and meaning.

The free-form blocks (environment, workflow, components, ...) are declared by the constructors they name: see `targets`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from rl_lab.config.alerts import AlertsConfig
from rl_lab.config.block import Block, Node
from rl_lab.config.transport import TransportConfig
from rl_lab.core.ranges import Count

SCHEMA_VERSION = 1
ROOT_DEFAULT = "${oc.env:LAB_EXPERIMENTS,experiments}"

ResumeMode = Literal["exact", "fork", "warm_start", "warm_start_optimizer"]


class ExperimentConfig(Block):
    """Who the run is and where it computes."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the run and of its directory.")
    seed: int = Field(default=1, ge=0, description="Root of every random stream; a comma list runs one after another.")
    num_seeds: Count = Field(
        default=1,
        description="Agents that are trained as one, with seeds `seed`, `seed + 1` and so on, each in `num_envs` "
        "environments of its own (Dreamer, PlaNet); all counts of env steps are of each of them.",
    )
    devices: Count = Field(
        default=1,
        description="Processes that train the run together on this machine, each on a GPU of its own where there are "
        "GPUs, with `num_envs` environments and `batch_size` rows of its own; under torchrun: as many as it started; "
        "also `devices=2`.",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto (a GPU when there is one), cpu or cuda[:i].",
    )
    num_threads: Count = Field(
        default=1, description="CPU threads of torch; results are bit-equal only for the same number."
    )
    compile: Literal["auto", "eager", "compiled", "captured"] = Field(
        default="auto",
        description="How updates run, where the workflow allows it: eager, compiled (one graph), captured (one CUDA "
        "graph); auto compiles long runs on a CPU and captures on a GPU.",
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        default="float32",
        description="Of matrix products within updates, and world models' decisions: tf32 (on a GPU) and bfloat16 are "
        "faster; parameters, normalisations, heads and losses stay float32.",
    )
    root: str = Field(
        default=ROOT_DEFAULT, description="Directory that holds the run directories (or LAB_EXPERIMENTS)."
    )
    tags: list[str] = Field(default=[], description="Free labels to find the run by.")
    deterministic: bool = Field(default=True, description="Let torch choose only deterministic algorithms.")
    debug: bool = Field(default=False, description="Run it tiny, all checked and measured; also `debug=true`.")
    fit_memory: bool = Field(default=False, description="Lower capacities of buffers that do not fit into memory.")


class TeacherConfig(Block):
    """A finished run, or a script, that shows this one what to do; a phase's `teacher_share` says how often it acts."""

    run: str | None = Field(
        default=None, description="Its directory, name or id, or the name of its experiment (the newest run of it)."
    )
    expert: Node | None = Field(
        default=None,
        description="Instead of a run: a workflow that needs no weights, e.g. "
        "{_target_: rl_lab.human.experts.InsertionExpert}.",
    )
    checkpoint: str = Field(default="latest", description="latest (the newest whole one), best, or a name or path.")
    explore: bool = Field(default=False, description="Let it sample its actions instead of taking the most likely.")
    mix: Literal["step", "episode"] = Field(
        default="step", description="When it is drawn who acts: at every step, or when an episode begins."
    )
    observation_keys: dict[str, str] | str | None = Field(
        default=None,
        description="Where each observation that it reads lies in this environment, if under another name; one name "
        "where it reads one array.",
    )
    privileged: list[str] = Field(default=[], description="Observations that only the teacher sees, not the student.")


class TrainingConfig(Block):
    """How long to train, in which phases, and what is saved and evaluated on the way."""

    total_timesteps: Count = Field(
        description="Env steps after which no phase collects any more; tested at cycle ends."
    )
    phases: list[Node] = Field(
        description="The curriculum: name, workflow_hooks, one duration_*, and type, buffer, train_ratio when needed."
    )
    overlap: Literal["strict"] | None = Field(
        default=None,
        description="strict: the environment takes its next step while the updates run, exact all the same (actions "
        "are then a cycle older); null: one after the other.",
    )
    check_finite: Literal["rows", "every_update"] = Field(
        default="rows",
        description="When losses and weights are looked at for NaN and infinity, which end the run: whenever rows and "
        "checkpoints are written, or after every update (slower; the dump then has the state before it).",
    )
    checkpoint_frequency: Count | None = Field(
        default=50_000, description="Env steps between checkpoints; null: never."
    )
    checkpoint_updates: Count | None = Field(
        default=None, description="Gradient updates between checkpoints; null: never."
    )
    checkpoint_minutes: float | None = Field(
        default=10.0, gt=0, description="Minutes between checkpoints; null: never."
    )
    keep_last: Count = Field(default=2, description="Newest checkpoints that are kept.")
    keep_best: int = Field(default=1, ge=0, description="Checkpoints with the best evaluation that are kept besides.")
    eval_frequency: Count | None = Field(
        default=None,
        description="Env steps between evaluations in every phase; null: only where a phase has the evaluate hook.",
    )
    num_eval_episodes: Count = Field(default=10, description="Episodes per evaluation.")
    eval_num_envs: Count = Field(default=10, description="Environment copies of their own that evaluation plays in.")
    eval_gain: bool = Field(default=False, description="Tell too how far returns are above those of random actions.")
    eval_explore: bool = Field(default=False, description="Evaluate the exploring policy instead of the greedy one.")
    video_frequency: Count | None = Field(
        default=None,
        description="Env steps between films of the policy, media/train_<env step>, in an environment of their own; "
        "null: none.",
    )
    video_length: Count = Field(default=200, description="Steps of such a film.")
    teacher: TeacherConfig | None = Field(default=None, description="The run that this one learns from; null: none.")
    operator: Node | None = Field(
        default=None,
        description="Who watches while data is collected and may take over, e.g. "
        "{_target_: rl_lab.human.simulated.SimulatedHuman, expert: ...}; null: nobody.",
    )
    resume_path: str | None = Field(default=None, description="Run or checkpoint directory that a new run starts from.")
    resume_mode: ResumeMode = Field(
        default="exact",
        description="What is taken from resume_path: exact (everything), fork (everything, to go on with other options "
        "of algorithm, optimisers and buffers), warm_start (weights) or warm_start_optimizer (weights and optimisers).",
    )
    resume_parts: list[str] | None = Field(
        default=None,
        description="Modules of the workflow whose weights warm_start takes, such as [world_model], also from a run of "
        "another workflow; null: all.",
    )


class LoggingConfig(Block):
    """Where rows go and how often one is written. metrics.jsonl is always written."""

    terminal: bool = Field(default=True, description="Live panel on a terminal, plain lines otherwise.")
    tensorboard: bool = Field(default=True, description="TensorBoard event files under tb/.")
    csv: bool = Field(default=False, description="Export metrics.csv at the end.")
    wandb: bool | str = Field(
        default=False, description="Weights & Biases: true, or the name of a project; needs the extra rl-lab[wandb]."
    )
    every_steps: Count | None = Field(
        default=2_000, description="Env steps between rows of metrics; null: by updates only."
    )
    every_updates: Count | None = Field(
        default=None, description="Gradient updates between rows of metrics; null: by steps only."
    )
    hash_chain: Literal["none", "steps", "all"] = Field(
        default="all", description="What `lab runs verify` compares at every step; all: steps, and updates' parameters."
    )


class BudgetConfig(Block):
    """Upper bounds on other options, so that any experiment can be run in a second or two (budget=tiny)."""

    caps: dict[str, int | float] = Field(
        default={}, description="Dotted path, `*` for any key or index -> the largest value allowed."
    )


class LabConfig(Block):
    """The whole config of a run."""

    schema_version: int = Field(
        default=SCHEMA_VERSION, ge=1, description="Version of this layout; a newer one is refused."
    )
    experiment: ExperimentConfig
    environment: Node = Field(description="`_target_` of a VectorEnv and its arguments.")
    workflow: Node = Field(description="`_target_` of the algorithm.")
    algorithm: Node = Field(default={}, description="Further constructor arguments of the workflow.")
    components: dict[str, Node | None] = Field(
        default={}, description="Networks by name, each with a `_target_`; null: none."
    )
    controllers: dict[str, Node | None] = Field(
        default={}, description="Planners and policies by name, like components."
    )
    buffers: dict[str, Node | None] = Field(
        default={}, description="Experience storage by name, each with a `_target_`."
    )
    optimizers: dict[str, Node | None] = Field(
        default={},
        description="Optimisers by name: `_target_` under torch.optim with `_partial_: true`; the rest by default.",
    )
    training: TrainingConfig
    transport: TransportConfig = TransportConfig()
    logging: LoggingConfig = LoggingConfig()
    alerts: AlertsConfig = AlertsConfig()
    budget: BudgetConfig = BudgetConfig()


BLOCKS: dict[str, type[Block]] = {
    "experiment": ExperimentConfig,
    "training": TrainingConfig,
    "transport": TransportConfig,
    "logging": LoggingConfig,
    "alerts": AlertsConfig,
    "budget": BudgetConfig,
}


def defaults() -> dict[str, Any]:
    """Return the config of a run that says nothing: what must be said is `???`, as OmegaConf writes it."""
    tree: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    for name in LabConfig.model_fields:
        if name in BLOCKS:
            fields = BLOCKS[name].model_fields
            tree[name] = {key: "???" if field.is_required() else _plain(field.default) for key, field in fields.items()}
        elif name != "schema_version":
            tree[name] = {}
    return tree


def _plain(default: Any) -> Any:
    return default.model_dump() if isinstance(default, BaseModel) else default
