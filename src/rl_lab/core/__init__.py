"""The vocabulary every other room speaks. Imports nothing else from the lab."""

from rl_lab.core.buffer import Batch, Buffer, Footprint, Segment, Trajectory
from rl_lab.core.clocks import Every, Once, Ratio
from rl_lab.core.context import Counters, Named, Optimizers, WorkflowContext
from rl_lab.core.environment import Observation, State, Step, VectorEnv
from rl_lab.core.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    LabError,
    RunDirectoryError,
    UsageError,
    unknown_name,
)
from rl_lab.core.metrics import Mean, Metrics, Numbers, Picture
from rl_lab.core.phase import BUILT_IN_HOOKS, COLLECT, EVALUATE, HookCall, Phase
from rl_lab.core.references import Reference, split_reference
from rl_lab.core.seeding import (
    RngStreams,
    global_rng_state,
    isolated_rng,
    seed_everything,
    set_global_rng_state,
)
from rl_lab.core.spaces import ACTION_MASK, Box, Discrete, EnvSpec, MultiDiscrete, Space, flat_dim
from rl_lab.core.trees import Tree, tree_cat, tree_leaves, tree_map, tree_stack, tree_where
from rl_lab.core.workflow import (
    Actions,
    Carry,
    CollectResult,
    Extras,
    HookInfo,
    Update,
    Workflow,
    WorldModelWorkflow,
    hook,
)

__all__ = [
    "ACTION_MASK",
    "BUILT_IN_HOOKS",
    "COLLECT",
    "EVALUATE",
    "Actions",
    "Batch",
    "Box",
    "Buffer",
    "Carry",
    "CheckpointError",
    "CollectResult",
    "ConfigError",
    "Counters",
    "Discrete",
    "EnvSpec",
    "EnvironmentFault",
    "Every",
    "Extras",
    "Footprint",
    "HookCall",
    "HookInfo",
    "LabError",
    "Mean",
    "Metrics",
    "MultiDiscrete",
    "Named",
    "Numbers",
    "Observation",
    "Once",
    "Optimizers",
    "Phase",
    "Picture",
    "Ratio",
    "Reference",
    "RngStreams",
    "RunDirectoryError",
    "Segment",
    "Space",
    "State",
    "Step",
    "Trajectory",
    "Tree",
    "Update",
    "UsageError",
    "VectorEnv",
    "Workflow",
    "WorkflowContext",
    "WorldModelWorkflow",
    "flat_dim",
    "global_rng_state",
    "hook",
    "isolated_rng",
    "seed_everything",
    "set_global_rng_state",
    "split_reference",
    "tree_cat",
    "tree_leaves",
    "tree_map",
    "tree_stack",
    "tree_where",
    "unknown_name",
]
