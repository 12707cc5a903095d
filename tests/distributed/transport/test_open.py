import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_lab.core.errors import ConfigError
from rl_lab.distributed.transport.open import TransportConfig, open_receiver, open_sender
from tests.distributed.transport.steps import number_of, step

PACKAGE = Path(__file__).parents[3] / "src"
PROTO = "rl_lab/distributed/transport/transport.proto"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"kind": "carrier pigeon"}, r"unknown transport.kind 'carrier pigeon' \(choices: host, memory, network\)"),
        ({"adress": "x"}, "unknown key in transport 'adress'; did you mean 'address'"),
        ({"limits": {"actor": 1}}, "unknown key in transport.limits 'actor'; did you mean 'actors'"),
        ({"kind": "network"}, "transport.address is missing"),
    ],
)
def test_a_wrong_block_is_one_line(block, message):
    with pytest.raises(ConfigError, match=message):
        TransportConfig.read(block)


def test_a_step_must_fit_a_message(tmp_path):
    config = TransportConfig.read({"kind": "host", "address": str(tmp_path / "s"), "limits": {"message_bytes": 100}})
    with pytest.raises(ConfigError, match="transport.limits.message_bytes is 100: a step has 67 bytes"):
        open_receiver(config, step(0))


def test_memory_needs_both_ends_in_one_process():
    with pytest.raises(ConfigError, match="joins two ends in one process"):
        open_sender(TransportConfig(), step(0))


def test_the_memory_queue_is_bounded_and_part_of_the_state():
    config = TransportConfig.read({"limits": {"unread_bytes": 300}})
    with open_receiver(config, step(0)) as receiver, open_sender(config, step(0), receiver) as sender:
        for number in range(4):
            sender.send(step(number))
        with pytest.raises(ValueError, match="was not recorded: the learner is 4 behind"):
            sender.send(step(4), timeout_s=0.05)
        assert [number_of(entry.step) for entry in receiver.receive(1, 0.0)] == [0]
        state = receiver.get_state()
        rest = receiver.receive(10, 0.0)
    with open_receiver(config, step(0)) as again, open_sender(config, step(0), again) as sender:
        again.set_state(state)
        assert [number_of(entry.step) for entry in again.receive(10, 0.0)] == [number_of(entry.step) for entry in rest]
        assert sender.send(step(4)) == 4
        weights = torch.zeros(1)
        again.publish({"w": weights})
        weights += 1
        assert sender.newest_weights().tensors["w"] == 0
        assert sender.newest_weights() is None


def test_the_generated_messages_are_those_of_the_proto_file(tmp_path):
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PACKAGE), f"--python_out={tmp_path}"]
    subprocess.run([*command, f"--pyi_out={tmp_path}", PROTO], check=True, cwd=PACKAGE)
    for name in (PROTO.replace(".proto", "_pb2.py"), PROTO.replace(".proto", "_pb2.pyi")):
        assert (tmp_path / name).read_text() == (PACKAGE / name).read_text()
