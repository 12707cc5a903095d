"""Actors and learners in processes of their own, to be killed; a server that has imported torch forks them."""

import multiprocessing
import resource
import time
from contextlib import contextmanager
from pathlib import Path

from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.journal import Journal
from rl_lab.distributed.transport.open import TransportConfig, open_receiver, open_sender
from tests.distributed.transport.steps import number_of, step

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.distributed.transport.processes"])


@contextmanager
def file_size_limit(num_bytes):
    """Let no file of this process grow beyond this: the system's refusal looks like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def open_journal(directory, report):
    """Report why a journal cannot be opened."""
    try:
        Journal(Path(directory))
        report.send("")
    except TransportError as error:
        report.send(str(error))


def act(block, total):
    """Send the steps from the first that is not recorded on, and leave when the learner has all."""
    with open_sender(TransportConfig.read(block), step(0)) as sender:
        while (number := sender.status().next_seq) < total:
            sender.send(step(number))
            time.sleep(0.001)
        while not sender.flush(1.0):
            pass


def learn(block, results):
    """Write what is received to a file for ever, and now and then a checkpoint: the cursor and the file's size."""
    with open_receiver(TransportConfig.read(block), step(0)) as receiver, open(results, "ab+") as file:
        checkpoint = Path(f"{results}.checkpoint")
        if checkpoint.exists():
            log, following, size = checkpoint.read_text().split()
            receiver.set_state({"log": log, "next": int(following)})
            file.truncate(int(size))
        while True:
            for actor, _, seq, tree in receiver.receive(50, 0.2):
                file.write(f"{actor} {seq} {number_of(tree)}\n".encode())
            file.flush()
            state = receiver.get_state()
            Path(f"{results}.new").write_text(f"{state['log']} {state['next']} {file.tell()}")
            Path(f"{results}.new").replace(checkpoint)
            receiver.release(state)
