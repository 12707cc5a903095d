import pytest

from rl_lab.core import ConfigError
from rl_lab.human.web.access import COOKIE, Access, Denied, Listening, check_name

TOKEN, LOOK = "operators-only-0123456789", "viewers-may-look-0123456789"


@pytest.fixture
def guarded():
    return Access(Listening(host="0.0.0.0", operator_token=TOKEN, viewer_token=LOOK, allow_plain_http=True))


def test_tokens_tell_roles(guarded):
    assert guarded.role(f"{COOKIE}={TOKEN}") == "operator"
    assert guarded.role(f"other=1; {COOKIE}={LOOK}") == "viewer"
    for cookie in (None, "", f"{COOKIE}=", f"{COOKIE}={TOKEN}x", f"{COOKIE}={TOKEN[:-1]}", "\x00=;=", f"{COOKIE}=é"):
        with pytest.raises(Denied) as caught:
            guarded.role(cookie)
        assert caught.value.status == 401


def test_this_machine_needs_no_token():
    assert Access(Listening()).role(None) == "operator"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "robot.example", ""])
def test_other_machines_do(host):
    with pytest.raises(ConfigError, match="listening.operator_token: missing"):
        Access(Listening(host=host))


def test_a_token_can_be_made_and_not_be_short():
    made = {Access(Listening(operator_token="generate")).operator_token for _ in range(3)}
    assert len(made) == 3
    assert min(map(len, made)) >= 32
    with pytest.raises(ConfigError, match="listening.operator_token: at least 16 characters"):
        Access(Listening(operator_token="short"))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8081", "", None, "127.0.0.1.evil.example"])
def test_names_that_were_made_to_point_here_are_denied(host):
    with pytest.raises(Denied):
        Access(Listening()).check_host(host)


def test_requests_come_from_the_page_itself(guarded):
    local = Access(Listening())
    local.check_origin("http://localhost:8081", "localhost:8081")
    local.check_origin("http://[::1]:8081", "[::1]:8081")
    guarded.check_origin("http://robot.example:8081", "robot.example:8081")
    for origin in (None, "null", "http://evil.example", "https://localhost:8081", "http://localhost:9999"):
        with pytest.raises(Denied) as caught:
            local.check_origin(origin, "localhost:8081")
        assert caught.value.status == 403


@pytest.mark.parametrize("name", ["", " ", "a" * 33, "<b>", "a\nb", 7, None, "a/b"])
def test_names_of_people_are_harmless(name):
    with pytest.raises(Denied):
        check_name(name)
