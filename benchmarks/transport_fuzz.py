"""Mutated messages are thrown at a learner that listens: each is refused or is one it has, and the learner goes on.

python benchmarks/transport_fuzz.py
python benchmarks/transport_fuzz.py --messages 2000 --name try
"""

from __future__ import annotations

import argparse
import logging
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import torch
from harness import markdown_table, write_results

from rl_lab.distributed.transport import transport_pb2 as messages
from rl_lab.distributed.transport.callers import TOKEN_KEY, read_token
from rl_lab.distributed.transport.frames import frame
from rl_lab.distributed.transport.open import TransportConfig, open_receiver
from rl_lab.distributed.transport.schema import Schema
from rl_lab.distributed.transport.service import NAME, SESSION_KEY

EXAMPLE = {"observations": torch.zeros(1, 8), "terminated": torch.zeros(1, dtype=torch.bool)}
STEPS = 3  # in a message
EVERY = 1000  # messages between two whole ones


def main() -> None:
    args = parse_arguments()
    logging.disable()  # a line for every refusal
    with tempfile.TemporaryDirectory() as folder:
        row = run(folder, args)
    write_results(args.name, [row], seeds=[args.seed])
    print(markdown_table([row]))
    if row["steps taken"] != row["steps sent whole"] or row["steps changed"]:
        sys.exit("error: something came through, or was kept from coming through")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1, help="of the mutations")
    parser.add_argument("--name", default="transport_fuzz", help="of the result files")
    return parser.parse_args()


def run(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Send mutated messages and, every so often, a whole one; return what became of them."""
    rng, schema, answers, sent = random.Random(args.seed), Schema(EXAMPLE), Counter[str](), 0
    config = TransportConfig.read({"kind": "network", "address": "127.0.0.1:0", "directory": folder})
    start, received = time.monotonic(), []
    with open_receiver(config, EXAMPLE) as receiver, grpc.insecure_channel(receiver.address) as channel:
        proof = ((TOKEN_KEY, str(read_token(int(receiver.address.rpartition(":")[2])))),)
        metadata = (*proof, (SESSION_KEY, hello(channel, schema, proof)))
        for number in range(args.messages):
            if number % 2:  # the message is changed, or what it carries
                data = mutated(message(frames(schema, sent)), rng)
            else:
                data = message(mutated(frames(schema, sent), rng))
            answers[push(channel, metadata, data)] += 1
            if number % EVERY == EVERY - 1:
                following = push(channel, metadata, message(frames(schema, sent)))
                if following != str(sent + STEPS):
                    raise RuntimeError(f"a whole message was answered with {following}")
                sent += STEPS
            received += receiver.receive(1000, 0.0)
        received += receiver.receive(1000, 1.0)
    changed = sum(not bool((entry.step["observations"] == entry.seq).all()) for entry in received)
    return {
        "messages": args.messages,
        **{name: count for name, count in sorted(answers.items()) if not name.isdigit()},
        "acknowledged as known": sum(count for name, count in answers.items() if name.isdigit()),
        "steps sent whole": sent,
        "steps taken": len(received),
        "steps changed": changed,
        "wall_s": round(time.monotonic() - start, 1),
    }


def frames(schema: Schema, first: int) -> bytes:
    """Return the next steps."""
    steps = (EXAMPLE | {"observations": torch.full((1, 8), float(first + offset))} for offset in range(STEPS))
    return b"".join(frame(first + offset, schema.encode(step)) for offset, step in enumerate(steps))


def message(data: bytes) -> bytes:
    return messages.Steps(frames=data).SerializeToString()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to four changes: flipped, cut, repeated, inserted, or a length made large."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(made)) if made else 0
        kind = rng.randrange(5)
        if kind == 0 and made:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del made[at:]
        elif kind == 2:
            made[at:at] = made[: rng.randrange(1, 64)]
        elif kind == 3:
            made[at:at] = rng.randbytes(rng.randrange(1, 64))
        else:
            made[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31 - 1, 2**32 - 1)))
    return bytes(made) if bytes(made) != data else b"\xff"


def hello(channel: grpc.Channel, schema: Schema, proof: Any) -> str:
    call = channel.unary_unary(
        f"/{NAME}/Hello", messages.HelloRequest.SerializeToString, messages.HelloReply.FromString
    )
    request = messages.HelloRequest(actor="fuzz", run="r", schema=schema.text, process="p")
    return call(request, timeout=10, metadata=proof).session


def push(channel: grpc.Channel, metadata: Any, data: bytes) -> str:
    """Return the answer: the number of the next step, or the code of the refusal."""
    call = channel.stream_stream(f"/{NAME}/Push", None, messages.Acknowledgement.FromString)

    def once() -> Iterator[bytes]:
        yield data

    try:
        return str([answer.next for answer in call(once(), metadata=metadata, timeout=30)][-1])
    except grpc.RpcError as error:
        return error.code().name


if __name__ == "__main__":
    main()
