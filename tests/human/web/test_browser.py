"""The page in headless Chromium, as a person uses it. Skipped where it is not installed."""

import time

import pytest

from rl_lab.human.web.access import Listening
from rl_lab.human.web.operator import WebOperator
from tests.human.bench import ARM, LONG_S, Bench, Rules
from tests.human.chromium import Browser, skip_without_chromium

DEAD_MAN_MS = 3_000.0  # a browser on a machine that does other things may be late


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    skip_without_chromium()
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def bench():
    operator = WebOperator(
        ARM, listening=Listening(port=0), rules=Rules(steps_per_second=100.0), dead_man_ms=DEAD_MAN_MS
    )
    bench = Bench(operator)
    yield bench
    bench.close()


def enter(browser, bench, name):
    browser.open(bench.operator.url)
    browser.run("localStorage.clear(); document.getElementById('name').value = ''")
    browser.type("#name", name)
    browser.click("#go")
    bench.step_until(lambda: browser.is_enabled("#control"))


def says(browser, selector, text):
    return lambda: text in browser.text(selector)


def test_a_person_at_the_page(browser, bench):
    enter(browser, bench, "anna")
    bench.step_until(says(browser, "#who", "the policy acts"))
    assert browser.text("#task") == "insert the peg into the hole"

    browser.click("#control")  # take over, by mouse
    bench.step_until(says(browser, "#who", "you act"))
    browser.press("#jog-x\\+")
    bench.step_until(lambda: bench.is_acting and bench.action == [1.0, 0.0, 0.0])
    browser.release()
    bench.step_until(lambda: not bench.step())  # let go: the robot holds
    browser.key_down("up")  # by key
    bench.step_until(lambda: bench.action == [0.0, 1.0, 0.0])
    browser.key_up("up")
    bench.step_until(lambda: not bench.step())
    assert bench.operator.name == "anna"

    browser.click("#success")
    bench.step_until(lambda: bool(bench.last.terminated))
    assert bench.verdict() == [1.0]
    bench.step_until(says(browser, "#verdict", "success (anna)"))
    browser.click("#control")  # hand back
    bench.step_until(lambda: not bench.is_acting)

    browser.click("#pause")
    bench.step_until(says(browser, "#who", "paused by anna"))
    assert not bench.step()
    browser.key_down(" "), browser.key_up(" ")
    bench.step_until(bench.step)
    browser.click("#failure")
    bench.step_until(lambda: bool(bench.last.terminated) and float(bench.last.rewards) == 0.0)
    assert "%" in browser.text("#rate")
    assert browser.text("#note") == ""


def test_a_session_that_is_over_begins_anew(browser, bench):
    enter(browser, bench, "anna")
    bench.operator._sessions._sessions.clear()  # as after a minute of silence, or in a new process
    bench.step_until(lambda: bench.operator.state()["people"] == ["anna"])
    browser.click("#control")
    bench.step_until(says(browser, "#who", "you act"))


def test_who_closes_the_page_lets_go_at_once(browser, bench):
    enter(browser, bench, "anna")
    browser.click("#control")
    bench.step_until(says(browser, "#who", "you act"))
    browser.open("about:blank")
    bench.step_until(lambda: bench.operator.desk.look().paused == "anna left while in control")
    assert not bench.step()


def test_a_browser_that_dies_lets_go(browser, bench):
    enter(browser, bench, "anna")
    browser.click("#control")
    bench.step_until(says(browser, "#who", "you act"))
    browser.press("#jog-z\\+")
    bench.step_until(lambda: bench.is_acting and bench.action == [0.0, 0.0, 1.0])
    browser.kill()
    killed = time.monotonic()
    bench.step_until(lambda: bench.operator.desk.look().controller is None)
    assert time.monotonic() - killed <= LONG_S
    assert not bench.step()  # the robot holds
    bench.step()
    assert bench.lines[-1] == "anna fell silent while in control: the robot holds"
