"""Who is refused at the page is in the log, and nobody takes all the streams."""

import pytest

from rl_lab.core import ConfigError
from rl_lab.core.line_limit import AT_ONCE
from rl_lab.human.web import requests
from rl_lab.human.web.access import Access, Denied, Listening
from rl_lab.human.web.refusals import Refusals
from tests.human.web.test_page import TOKEN, Client, read_event, serve


def test_other_machines_need_https_unless_it_is_said():
    with pytest.raises(ConfigError, match="listening.certificate: missing, but 0.0.0.0 is for other machines"):
        Access(Listening(host="0.0.0.0", operator_token=TOKEN))
    Access(Listening(host="0.0.0.0", operator_token=TOKEN, allow_plain_http=True))
    Access(Listening(operator_token=TOKEN))  # at this machine nobody listens on the way


def test_refusals_are_logged_without_tokens(caplog):
    bench = serve(listening=Listening(port=0, operator_token=TOKEN))
    client = Client(bench.operator)
    assert client.ask("GET", "/?token=wrong-0123456789")[0] == 401
    assert client.ask("GET", "/favicon.ico")[0] == 404
    assert client.post("/command", {"do": "jog"}, Origin="http://evil.example")[0] == 403
    client.connection.close()
    bench.close()
    assert [text for text in caplog.messages if "refused" in text] == [
        "operator page: refused GET / of 127.0.0.1: 401 the token is wrong",
        "operator page: refused POST /command of 127.0.0.1: 403 requests come from the page itself",
    ]


def test_a_flood_of_refusals_is_a_few_lines(caplog):
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(AT_ONCE + 50):
        refusals.add("10.0.0.9", "GET /\nfalse line", Denied(401, "the token is wrong"))
    now[0] = 1.0
    refusals.add("10.0.0.9", "GET /", Denied(401, "the token is wrong"))
    assert len(caplog.messages) == AT_ONCE + 1
    assert caplog.messages[0] == "operator page: refused GET / false line of 10.0.0.9: 401 the token is wrong"
    assert caplog.messages[-1].endswith("the token is wrong (and 50 more)")


def test_streams_are_for_the_page_itself_and_nobody_has_all_of_them(monkeypatch):
    monkeypatch.setattr(requests, "MAX_STREAMS_EACH", 2)
    bench = serve()
    assert Client(bench.operator).ask("GET", "/events", Sec_Fetch_Site="cross-site")[0] == 403
    clients = [Client(bench.operator) for _ in range(2)]
    for client in clients:
        client.connection.request("GET", "/events", headers={"Sec-Fetch-Site": "same-origin"})
        assert read_event(client.connection.getresponse())[0] == "state"
    status, answer = Client(bench.operator).ask("GET", "/events")
    assert (status, answer) == (503, {"error": "127.0.0.1 looks on 2 times already"})
    bench.close()
    for client in clients:
        client.connection.close()
