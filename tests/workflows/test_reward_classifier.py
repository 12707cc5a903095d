"""The reward classifier: its update and report against numbers computed another way, learning, resume."""

import json

import pytest
import torch
import torch.nn.functional as F

from rl_lab.components.classifier import Classifier
from rl_lab.components.mlp import MLP
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.targets import Targets
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, HookCall, LabError, Phase
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.workflows.reward_classifier import RewardClassifier
from tests.workflows.off_policy import start
from tests.workflows.teaching import TINY, composed, train

torch.set_num_threads(1)
VECTOR = EnvSpec("made-up", Box((3,)), Box((2,), low=-1.0, high=1.0))
SEEN = {"state": Box((2,)), "cam": Box((3, 16, 16), torch.uint8, 0, 255)}
CAMERA = EnvSpec("cell", SEEN, Box((2,), low=-1.0, high=1.0))
PHASE = Phase("fit", "offline", (HookCall("update_classifier", is_update=True),), "updates", 1)
SMALL = {"channels": (8, 8), "num_features": 8, "hidden_dims": (16,)}


def make(spec=VECTOR, seed=0, lr=1e-3, classifier=None, **options):
    sizes = {**SMALL, "dropout": 0.0, **(classifier or {})}
    return start(RewardClassifier(**options), spec, lambda: {"classifier": Classifier(**sizes)}, lr=lr, seed=seed,
                 names=("classifier",))  # fmt: skip


def frames(spec=VECTOR, count=64, seed=0):
    """Return observations and whether the sum of the numbers is positive; pictures are bright where it is."""
    generator = torch.Generator().manual_seed(seed)
    if spec is VECTOR:
        obs = torch.randn(count, 3, generator=generator) * torch.tensor([1.0, 100.0, 0.01]) + 5.0
        return {"observations": obs, "labels": (obs[:, 0] > 5.0).long()}
    labels = torch.randint(2, (count,), generator=generator)
    noise = torch.randint(60, (count, 3, 16, 16), generator=generator)
    rows = torch.arange(16)[None, :, None]
    bright = torch.where((rows < 8) == (labels[:, None, None] == 1), 180, 0)[:, None]
    return {"observations": {"state": torch.zeros(count, 2), "cam": (noise + bright).to(torch.uint8)}, "labels": labels}


def test_an_update_is_the_cross_entropy_of_normalised_numbers():
    workflow, batch = make(), frames()
    x = batch["observations"].double()
    x = ((x - x.mean(0)) / x.var(0, correction=0).sqrt()).float()
    first, norm, last = workflow.classifier.head[0], workflow.classifier.head[2], workflow.classifier.head[4]
    hidden = torch.relu(F.layer_norm(first(x), (16,), norm.weight, norm.bias))
    logits = last(hidden)
    expected = -(logits.log_softmax(-1)[torch.arange(64), batch["labels"]]).mean()
    gradient = torch.autograd.grad(expected, first.weight)[0]
    before = first.weight.detach().clone()
    metrics = workflow.update_classifier(batch, phase=PHASE)
    assert float(metrics["loss"]) == pytest.approx(float(expected.detach()), rel=1e-4)
    step = 1e-3 * gradient / (gradient.abs() + 1e-8)  # the first step of Adam
    torch.testing.assert_close(first.weight.detach(), before - step, atol=2e-6, rtol=1e-3)


def test_golden_losses():
    workflow = make(classifier={"dropout": 0.2})
    torch.manual_seed(0)
    found = [float(workflow.update_classifier(frames(), phase=PHASE)["loss"]) for _ in range(3)]
    assert found == pytest.approx(GOLDEN, rel=1e-4)


GOLDEN = [0.7540228366851807, 0.7476968169212341, 0.724758505821228]


def test_the_report_by_hand():
    """Chances are set by the bias alone, so that every frame gets the same ones: 0.8 for the last class."""
    workflow = make(threshold=0.75, num_bins=5)
    with torch.no_grad():
        workflow.classifier.head[-1].weight.zero_()
        workflow.classifier.head[-1].bias.copy_(torch.tensor([0.2, 0.8]).log())
    labels = torch.tensor([0] * 6 + [1] * 2)
    report = workflow.evaluate_classifier({"observations": torch.randn(8, 3), "labels": labels}, phase=PHASE)
    numbers = {key: float(value) for key, value in report.items() if key != "reliability"}
    expected = {
        "accuracy": 0.25, "recall_0": 0.0, "recall_1": 1.0, "false_successes": 1.0, "missed_successes": 0.0,
        "calibration_error": 0.3,  # both classes count alike: said 0.8, came 0.5
        "reliability_1.00_said": 0.8, "reliability_1.00_came": 0.5, "reliability_1.00_share": 1.0,
        "reliability_0.20_share": 0.0,
        "loss": -0.5 * (torch.tensor(0.2).log() + torch.tensor(0.8).log()).item(),
    }  # fmt: skip
    assert {key: numbers[key] for key in expected} == pytest.approx(expected, abs=1e-5)
    assert report["reliability"].pixels.shape == (200, 200, 3)


@pytest.mark.parametrize(("spec", "updates", "shift"), [(VECTOR, 150, 0), (CAMERA, 60, 1)], ids=["vector", "pictures"])
def test_it_learns_and_its_chances_can_be_believed(spec, updates, shift):
    workflow = make(spec, lr=1e-2 if spec is VECTOR else 5e-3, image_shift=shift, classifier={"dropout": 0.1})
    for seed in range(updates):
        workflow.update_classifier(frames(spec, seed=seed), phase=PHASE)
    report = workflow.evaluate_classifier(frames(spec, 200, seed=10**6), phase=PHASE)
    assert float(report["accuracy"]) > 0.95
    assert float(report["calibration_error"]) < 0.1


def test_the_same_seed_gives_the_same_classifier():
    def trained(rows):
        workflow = make(CAMERA, image_shift=2, classifier={"dropout": 0.2}, report_rows=rows)
        torch.manual_seed(1)
        for seed in range(3):
            workflow.update_classifier(frames(CAMERA, 8, seed=seed), phase=PHASE)
        report = workflow.evaluate_classifier(frames(CAMERA, 20), phase=PHASE)
        return torch.cat([p.detach().flatten() for p in workflow.parameters()]), float(report["loss"])

    (weights, loss), (again, loss_in_pieces) = trained(256), trained(7)
    assert torch.equal(weights, again)
    assert loss == pytest.approx(loss_in_pieces, rel=1e-5)


def test_weights_alone_make_it_anew():
    workflow = make(CAMERA, classifier={"num_classes": 3})
    workflow.update_classifier({**frames(CAMERA), "labels": torch.arange(64) % 3}, phase=PHASE)
    workflow.classifier.train(False)
    stream = torch.get_rng_state()
    again = Classifier.from_weights(workflow.classifier.state_dict())
    assert torch.equal(torch.get_rng_state(), stream)
    seen = frames(CAMERA, seed=5)["observations"]
    assert torch.equal(again.chances(seen), workflow.classifier.chances(seen))
    assert again.shapes == {"state": (2,), "cam": (3, 16, 16)}
    with pytest.raises(ConfigError, match="no weights of a reward classifier"):
        Classifier.from_weights({"layout": torch.zeros(3, dtype=torch.uint8)})
    with pytest.raises(ConfigError, match="no weights of a reward classifier"):
        Classifier.from_weights({k: v for k, v in workflow.classifier.state_dict().items() if k != "head.0.bias"})


CUT = "training.checkpoint_frequency=20"  # env steps: cuts what is collected


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return train(composed("reward_classifier_insertion", root, *TINY, CUT), root, "whole")


def test_resume_is_exact_and_the_report_is_in_the_run(whole, tmp_path):
    run = train(composed("reward_classifier_insertion", tmp_path, *TINY, CUT), tmp_path, "halves", stop_at=3)
    assert fingerprint(run) != fingerprint(whole)
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert any("eval/calibration_error" in row for row in rows)
    assert list(run.media.rglob("reliability_*.png"))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("components.classifier.num_classes=1",), r"components.classifier.num_classes: must be 2 or more, not 1"),
        (("components.classifier.keys=[cam]",), r"unknown key in components.classifier.keys 'cam'"),
        (("buffers.frames.label=verdikt", "buffers.frames.path={path}"), r"unknown info of .* in label 'verdikt'"),
        (("buffers.frames.path=nowhere",), "nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line(overrides, line, tmp_path):
    if any("{path}" in override for override in overrides):
        recorded = train(composed("bc_insertion", tmp_path, *TINY), tmp_path, "recorded")
        overrides = [o.format(path=recorded.path / "buffers" / "demonstrations" / "dataset") for o in overrides]
    with pytest.raises(Exception, match=line) as caught:
        assemble(composed("reward_classifier_insertion", tmp_path, *TINY, *overrides), Targets(AllowList()))
    assert "\n" not in str(caught.value)


def test_a_run_that_saw_one_class_only_ends_with_one_line(tmp_path):
    failing = ("training.phases.0.teacher_share=0.0", "++environment.env_kwargs.max_episode_steps=2")
    config = composed("reward_classifier_insertion", tmp_path, *TINY, *failing)
    line = r"phase 'fit' can never update: buffer 'frames' .* all 2 classes to learn from, .* \(from 0 successes"
    with pytest.raises(LabError, match=line) as caught:
        train(config, tmp_path, "run")
    assert "\n" not in str(caught.value)


def test_other_components_and_observations_are_refused():
    with pytest.raises(ConfigError, match="components.classifier: needs a rl_lab.components.classifier.Classifier"):
        start(RewardClassifier(), VECTOR, lambda: {"classifier": MLP(3, (4,))}, names=("classifier",))
    with pytest.raises(ConfigError, match="the observation is neither a vector nor a picture"):
        make(EnvSpec("x", Discrete(3), Box((2,), low=-1.0, high=1.0)))
