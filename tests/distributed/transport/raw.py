"""A peer that says what it likes to a learner."""

import grpc

from rl_lab.distributed.transport import transport_pb2 as messages
from rl_lab.distributed.transport.callers import TOKEN_KEY, read_token
from rl_lab.distributed.transport.service import NAME, SESSION_KEY
from tests.distributed.transport.steps import SCHEMA


class Raw:
    """A channel, and calls with any content."""

    def __init__(self, address, credentials=None, name="learner.rl-lab", token=None):
        known = read_token(int(address.rpartition(":")[2])) if credentials is None and ":" in address else None
        self.proof = ((TOKEN_KEY, token or known),) if token or known else ()
        options = [("grpc.max_send_message_length", -1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            options.append(("grpc.ssl_target_name_override", name))
            self.channel = grpc.secure_channel(address, credentials, options)

    def hello(self, **fields):
        request = {"actor": "raw", "run": "r", "schema": SCHEMA.text, "first": 0, "process": "p"} | fields
        call = self.channel.unary_unary(
            f"/{NAME}/Hello", messages.HelloRequest.SerializeToString, messages.HelloReply.FromString
        )
        return call(messages.HelloRequest(**request), timeout=5, metadata=self.proof)

    def push(self, bodies, session=""):
        """Send bytes as they are and return how far the last answer said, or the code of the refusal."""
        call = self.channel.stream_stream(f"/{NAME}/Push", None, messages.Acknowledgement.FromString)
        try:
            answers = list(call(iter(bodies), metadata=(*self.proof, (SESSION_KEY, session)), timeout=10))
        except grpc.RpcError as error:
            return error.code().name
        return answers[-1].next if answers else None

    def status(self):
        call = self.channel.unary_unary(f"/{NAME}/Status", None, messages.StatusReply.FromString)
        return call(b"", timeout=5, metadata=self.proof)
