"""Softlearning's policies, Q-functions and preprocessors: trunks and encoders of the lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_lab.config.foreign import Options
from rl_lab.config.softlearning.options import Part, Surroundings, Translator, translate_node
from rl_lab.core.errors import ConfigError

MLP = "rl_lab.components.mlp.MLP"
ENCODER = "components.encoder"
ACTIVATIONS = {name: name for name in ("relu", "tanh", "elu", "selu", "gelu", "leaky_relu")} | {"swish": "silu"}
CONVOLUTION_FEATURES = 256  # Softlearning hands on all pixels of the last convolution


def gaussian_policy(options: Options, around: Surroundings) -> Part:
    """Return the trunk of a squashed Gaussian policy; its head is the workflow's."""
    return _policy("gaussian", options, around)


def flow_policy(options: Options, around: Surroundings) -> Part:
    """Return the trunk of a RealNVP policy: layers before the couplings, which have a small network of their own."""
    options.only("use_batch_normalization", False)
    part = _policy("flow", options, around)
    part.elsewhere["algorithm.num_flow_layers"] = options.need("num_coupling_layers")
    return part


def _policy(kind: str, options: Options, around: Surroundings) -> Part:
    options.only("squash", True)
    options.only("output_activation", "linear")
    options.only("smoothing_coefficient", None, 0)
    features, encoder = _perceived(options, options.take("preprocessors"), around)
    node = {"_target_": MLP, "input_dim": features, **_layers(options)}
    return Part(node, {"algorithm.policy": kind, **encoder})


def critics(num_members: int | None) -> Translator:
    """Return the translation of so many Q-functions; None: as many as `N` says."""

    def translate(options: Options, around: Surroundings) -> Part:
        options.only("output_activation", "linear")
        features, encoder = _perceived(options, _of_observations(options), around)
        node = {
            "_target_": "rl_lab.components.ensemble.EnsembleMLP",
            "input_dim": f"${{add:{features},${{_dims.action}}}}",
            "num_members": options.need("N") if num_members is None else num_members,
            **_layers(options),
        }
        return Part(node, encoder)

    return translate


def _layers(options: Options) -> dict[str, Any]:
    options.ignore("name", "observation_keys")
    return {
        "hidden_dims": options.sizes("hidden_layer_sizes"),
        "activation": options.choose("activation", ACTIVATIONS, "relu"),
    }


def _of_observations(options: Options) -> Any:
    """Return the preprocessors of a Q-function's observations; those of its actions, beside them, must be null."""
    given = options.take("preprocessors")
    if not isinstance(given, list | tuple):
        return given
    if len(given) != 2 or given[1] is not None:
        raise ConfigError(f"{options.path}.preprocessors: must be those of the observations, and null for the actions")
    return given[0]


def _perceived(options: Options, given: Any, around: Surroundings) -> tuple[str, dict[str, Any]]:
    """Return what is read, and the encoder that preprocessors make; policy and critics share one."""
    path = f"{options.path}.preprocessors"
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{path}: must be a block by observation key, not {given!r}")
    nodes = dict(given or {})
    if not any(nodes.values()):
        return around.features, {}
    if len(nodes) == 1:
        ((key, node),) = nodes.items()
        encoder = translate_node(f"{path}.{key}", node, PREPROCESSORS, around).node
        return f"${{{ENCODER}.output_dim}}", {ENCODER: encoder}
    sizes, encoders = [], {}
    for key, node in nodes.items():
        shape = f"_dims.observation_shape.{key}"
        if node is None:
            sizes.append(f"${{{shape}[0]}}")
            encoders[key] = {"_target_": MLP, "input_dim": sizes[-1], "hidden_dims": []}
        else:
            sizes.append(str(CONVOLUTION_FEATURES))
            convolutions = translate_node(f"{path}.{key}", node, PREPROCESSORS, around).node
            encoders[key] = {**convolutions, "input_shape": f"${{{shape}}}"}
    encoder = {"_target_": "rl_lab.components.dict_encoder.DictEncoder", "encoders": encoders}
    return f"${{add:{','.join(sizes)}}}", {ENCODER: encoder}


def convnet(options: Options, around: Surroundings) -> Part:
    """Return convolutions without padding and normalisation, and a linear layer of features behind them."""
    options.only("downsampling_type", "conv")
    options.ignore("normalization_type", "normalization_kwargs", "padding", "activation", "name")
    node = {
        "_target_": "rl_lab.components.cnn.CNN",
        "input_shape": "${_dims.observation_shape}",
        "channels": options.sizes("conv_filters", 64, 64, 64),
        "kernel_sizes": options.sizes("conv_kernel_sizes", 3, 3, 3),
        "strides": options.sizes("conv_strides", 2, 2, 2),
        "output_dim": CONVOLUTION_FEATURES,
    }
    return Part(node)


PREPROCESSORS: dict[str, Translator] = {"convnet_preprocessor": convnet}
NETWORKS: dict[str, Translator] = {
    "FeedforwardGaussianPolicy": gaussian_policy,
    "GaussianPolicy": gaussian_policy,
    "RealNVPPolicy": flow_policy,
    "feedforward_Q_function": critics(1),
    "double_feedforward_Q_function": critics(2),
    "ensemble_feedforward_Q_function": critics(None),
    **PREPROCESSORS,
}
