"""The page by plain HTTP: what a browser sends, and what others try."""

import base64
import http.client
import json
import socket
import ssl
import struct
import zlib
from urllib.parse import urlsplit

import numpy as np
import pytest

from rl_lab.core import ConfigError
from rl_lab.human.operators.jogging import Jogging
from rl_lab.human.web.access import MAX_BODY, Listening
from rl_lab.human.web.operator import WebOperator
from tests.human.bench import ARM, FAST, LONG_S, Bench
from tests.human.drawing import skip_without_a_renderer

TOKEN, LOOK = "operators-only-0123456789", "viewers-may-look-0123456789"


class Client:
    """What a browser with one tab sends."""

    def __init__(self, operator, cookie=None, context=None):
        address = urlsplit(operator.url)
        self.host = address.netloc
        if context is None:
            self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=LONG_S)
        else:
            self.connection = http.client.HTTPSConnection(
                address.hostname, address.port, timeout=LONG_S, context=context
            )
        self.origin = f"{address.scheme}://{self.host}"
        self.headers = {} if cookie is None else {"Cookie": cookie}
        self.session = None

    def ask(self, method, path, body=None, **headers):
        """Return the status and the answer."""
        wanted = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        self.connection.request(method, path, data, {name: v for name, v in wanted.items() if v is not None})
        answer = self.connection.getresponse()
        content, self.answer = answer.read(), answer
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(content) if is_json else content

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, **{"Origin": self.origin, "Content_Type": "application/json"} | headers)

    def join(self, name):
        status, answer = self.post("/join", {"name": name})
        assert status == 200, answer
        self.session = answer["session"]
        return answer["role"]

    def do(self, deed, **more):
        return self.post("/command", {"session": self.session, "do": deed, **more})


def serve(*, listening=None, **options):
    listening = listening or Listening(port=0)
    return Bench(WebOperator(ARM, listening=listening, rules=FAST, dead_man_ms=1e6, **options))


@pytest.fixture
def bench():
    bench = serve()
    yield bench
    bench.close()


@pytest.fixture
def anna(bench):
    client = Client(bench.operator)
    assert client.join("anna") == "operator"
    yield client
    client.connection.close()


def test_the_page_is_one_file_that_loads_nothing_else(bench, anna):
    assert bench.lines == [f"people may look on at {bench.operator.url}"]
    status, page = anna.ask("GET", "/")
    assert status == 200
    text = page.decode()
    assert "src=" not in text.replace("image.src =", "")
    assert "http" not in text.replace("http-equiv", "")
    policy = anna.answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in policy


def test_take_over_jog_hand_back(bench, anna):
    bench.step()
    assert not bench.is_acting
    assert anna.do("jog", motion={"x": 1})[0] == 409
    status, state = anna.do("take_over")
    assert (status, state["controller"]) == (200, "anna")
    assert not bench.step()  # she does nothing, and so does the robot
    anna.do("jog", motion={"x": -0.5, "z": 1})
    assert bench.step()
    assert (bench.is_acting, bench.action, bench.operator.name) == (True, [-0.5, 0.0, 1.0], "anna")
    bert = Client(bench.operator)
    bert.join("bert")
    assert bert.do("take_over") == (409, {"error": "anna is in control"})
    assert bert.do("jog", motion={"x": 1})[0] == 409
    assert anna.do("hand_back")[0] == 200
    assert bench.step()
    assert not bench.is_acting
    state = bench.operator.state()
    assert (state["interventions"], state["watched_steps"], state["people"]) == (1, 3, ["anna", "bert"])
    assert state["intervention_rate"] == pytest.approx(1 / 3, abs=1e-4)
    bert.connection.close()


def test_words_and_pauses(bench, anna):
    bench.step()
    anna.do("pause")
    assert not bench.step()
    assert bench.operator.state()["paused"] == "paused by anna"
    anna.do("continue")
    assert bench.step()
    anna.do("success")
    bench.step()
    assert (bool(bench.last.terminated), bench.verdict()) == (True, [1.0])
    assert (bench.is_acting, bench.operator.name) == (True, "anna")
    state = bench.operator.state()
    assert (state["last_verdict"], state["episodes"]) == ("success (anna)", 1)  # which no counter of a run tells
    bench.step()
    anna.do("abort")
    bench.step()
    assert (bool(bench.last.truncated), bench.verdict()) == (True, [0.0])


def test_of_an_episode_nobody_spoke_of_the_task_decides(bench):
    for _ in range(100):
        bench.step()
    assert bool(bench.last.truncated)
    assert bench.verdict() == [-1.0]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/join", {"Origin": "http://evil.example"}, 403),
        ("/join", {"Origin": None}, 403),
        ("/command", {"Origin": "null"}, 403),
        ("/join", {"Host": "evil.example"}, 421),
        ("/join", {"Content_Type": "text/plain"}, 415),
        ("/nothing", {}, 404),
    ],
)
def test_other_sites_reach_nothing(anna, path, headers, status):
    assert anna.post(path, {"name": "eve", "session": anna.session, "do": "take_over"}, **headers)[0] == status
    assert anna.do("beat")[1]["controller"] is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"\xff\xfe", b"[" * 4000, b'{"session": {}, "do": []}'])
def test_nonsense_is_refused_and_the_page_goes_on(anna, body):
    assert anna.post("/command", body)[0] in (400, 410)
    assert anna.do("beat")[0] == 200


def test_long_commands_and_odd_requests_are_refused(bench, anna):
    assert anna.post("/command", {"do": "x" * MAX_BODY})[0] == 413
    address = urlsplit(bench.operator.url)
    for request in (b"\x16\x03\x01 no HTTP\r\n\r\n", b"POST /command HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
        with socket.create_connection((address.hostname, address.port), timeout=LONG_S) as stranger:
            stranger.sendall(request)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
    fresh = Client(bench.operator)
    assert fresh.join("bert") == "operator"
    fresh.connection.close()


def test_tokens_open_the_page_to_operators_and_viewers():
    plain = Listening(host="0.0.0.0", port=0, operator_token=TOKEN, viewer_token=LOOK, allow_plain_http=True)
    bench = serve(listening=plain)
    stranger = Client(bench.operator)
    for path in ("/", "/events", "/?token=wrong"):
        assert stranger.ask("GET", path)[0] == 401
    assert stranger.post("/join", {"name": "eve"})[0] == 401
    assert stranger.ask("GET", f"/?token={LOOK}")[0] == 303
    cookie = stranger.answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    viewer = Client(bench.operator, cookie.partition(";")[0])
    assert viewer.join("eve") == "viewer"
    assert viewer.ask("GET", "/")[0] == 200
    assert viewer.do("take_over")[0] == 403
    operator = Client(bench.operator, f"lab_operator={TOKEN}")
    assert operator.join("anna") == "operator"
    assert operator.do("take_over")[0] == 200
    for client in (stranger, viewer, operator):
        client.connection.close()
    bench.close()


@pytest.fixture
def certificates(tmp_path):
    """Give the lab's authority, and whose certificate and key are in one file."""
    pytest.importorskip("cryptography")
    from rl_lab.distributed.transport.certificates import create_authority, issue

    people = {"page": "learner", "anna": "operator", "eve": "viewer", "robot": "actor"}
    made = {"ca": create_authority(tmp_path, 1)}
    for name, role in people.items():
        path = issue(tmp_path, name, role, 1)
        made[name] = tmp_path / f"{name}-both.pem"
        made[name].write_bytes(path.read_bytes() + path.with_suffix(".key").read_bytes())
    return made


def trusting(certificates, own=None):
    context = ssl.create_default_context(cafile=certificates["ca"])
    context.check_hostname = False  # the learner's certificate has a name of its own
    if own is not None:
        context.load_cert_chain(certificates[own])
    return context


def test_certificates_tell_who_may_act_until_they_are_revoked(certificates):
    from rl_lab.distributed.transport.certificates import revoke

    listening = Listening("0.0.0.0", 0, certificate=str(certificates["page"]), authority=str(certificates["ca"]))
    bench = serve(listening=listening)
    assert "token" not in bench.operator.url
    anna, eve, robot = (Client(bench.operator, context=trusting(certificates, who)) for who in ("anna", "eve", "robot"))
    assert anna.join("somebody else") == "operator"
    assert anna.do("take_over")[1]["controller"] == "anna"  # as the certificate says
    assert eve.join("eve") == "viewer"
    assert eve.do("pause")[0] == 403
    assert robot.post("/join", {"name": "robot"})[0] == 403
    watching = Client(bench.operator, context=trusting(certificates, "eve"))
    watching.connection.request("GET", "/events")
    stream = watching.connection.getresponse()
    assert read_event(stream)[0] == "state"
    revoke(certificates["ca"].parent, "eve")  # whose page is open
    rest = stream.read()  # it ends
    assert not rest or rest.endswith(b"\n\n")
    assert eve.ask("GET", "/") == (403, {"error": "this certificate is revoked"})
    assert anna.do("hand_back")[0] == 200
    stranger = Client(bench.operator, context=trusting(certificates))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        stranger.ask("GET", "/")
    for client in (anna, eve, robot, stranger, watching):
        client.connection.close()
    bench.close()


def test_tls(certificates):
    both = certificates["page"]
    bench = serve(listening=Listening(port=0, operator_token=TOKEN, certificate=str(both)))
    assert bench.operator.url.startswith("https://")
    client = Client(bench.operator, f"lab_operator={TOKEN}", trusting(certificates))
    assert client.join("anna") == "operator"
    assert client.do("take_over")[0] == 200
    client.connection.close()
    plain = http.client.HTTPConnection("127.0.0.1", urlsplit(bench.operator.url).port, timeout=LONG_S)
    plain.request("GET", "/")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
    plain.close()
    bench.close()


def decoded(png):
    """Return the pixels of a PNG as the lab writes them, read by hand."""
    width, height = struct.unpack(">II", png[16:24])
    start, size = png.index(b"IDAT") + 4, struct.unpack(">I", png[png.index(b"IDAT") - 4 :][:4])[0]
    rows = np.frombuffer(zlib.decompress(png[start : start + size]), np.uint8).reshape(height, 1 + 3 * width)
    return rows[:, 1:].reshape(height, width, 3)


def read_event(stream):
    kind, data = (stream.readline().decode().rstrip("\n") for _ in range(2))
    assert stream.readline() == b"\n"
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@pytest.mark.parametrize("observations", ["pixels", "vector"])
def test_the_stream_shows_what_the_robot_sees(observations):
    skip_without_a_renderer()
    drawn = {"render_mode": "rgb_array", "render_size": 32} if observations == "vector" else {"size": 24}
    operator = WebOperator(ARM, listening=Listening(port=0), rules=FAST, fps=1_000.0)
    bench = Bench(operator, observations=observations, **drawn)
    client = Client(operator)
    client.connection.request("GET", "/events")
    stream = client.connection.getresponse()
    assert read_event(stream)[0] == "state"
    pictures = {}
    bench.step_until(lambda: operator._billboard.num_streams == 1)
    before = bench.obs
    bench.step()
    wanted = {"cam_high", "cam_wrist"} if observations == "pixels" else {"scene"}
    while pictures.keys() != wanted:
        kind, content = read_event(stream)
        if kind == "picture":
            pictures[content["camera"]] = decoded(base64.b64decode(content["png"]))
    if observations == "pixels":
        assert any(
            np.array_equal(pictures["cam_wrist"], seen["cam_wrist"][0].permute(1, 2, 0).numpy())
            for seen in (before, bench.obs)
        )
    else:
        assert pictures["scene"].shape == (32, 32, 3)
        assert pictures["scene"].std() > 5
    client.connection.close()
    bench.close()


def test_without_pictures_the_page_says_why():
    bench = serve()
    with bench.operator._billboard.watched("anna"):
        bench.step()
    assert "render_mode=rgb_array" in bench.operator.state()["no_picture"]
    bench.close()


def test_a_port_that_is_taken_is_one_line(bench):
    port = urlsplit(bench.operator.url).port
    with pytest.raises(ConfigError, match=rf"listening: 127.0.0.1:{port} cannot be listened at \(Address already"):
        serve(listening=Listening(port=port))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"listening": Listening(port=0, certificate="/none.pem")}, "listening.certificate: /none.pem is no"),
        ({"listening": Listening(host="0.0.0.0")}, "listening.operator_token: missing"),
        ({"listening": Listening(authority="ca.pem")}, "listening.authority: certificates are shown by HTTPS"),
        ({"fps": 0.0}, "fps more than 0"),
    ],
)
def test_bad_input_is_one_line(options, line):
    with pytest.raises(ConfigError, match=line) as caught:
        serve(**options)
    assert "\n" not in str(caught.value)


def test_where_nobody_listens_a_word_waits_for_the_end_of_the_episode():
    operator = WebOperator(Jogging({"rod": {"x": 0}}), listening=Listening(port=0), rules=FAST)
    bench = Bench(operator, "Pendulum-v1")
    anna = Client(operator)
    anna.join("anna")
    bench.step()
    anna.do("success")
    anna.do("abort")  # cannot be
    bench.step()
    anna.do("success")
    while not bool(bench.last.truncated):
        bench.step()
    assert bench.verdict() == [1.0]
    assert bench.lines[1] == "the episode cannot be called off: 'Pendulum-v1' listens to nobody"
    assert bench.lines[2] == "the episode ends by itself, as a success: 'Pendulum-v1' listens to nobody"
    anna.connection.close()
    bench.close()
