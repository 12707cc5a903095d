import pytest

from rl_lab.core import split_reference


@pytest.mark.parametrize(
    ("text", "module", "name"),
    [
        ("this:x", "this", "x"),
        ("this:1", "this", "1"),
        ("this:", "this", ""),
        ("this: x", "this", " x"),
        (" this:x", "this", "x"),
        ("this :x", "this", "x"),
        ("\tthis\n:x", "this", "x"),
        ("this:\nx", "this", "\nx"),
        ("this::x", "this", ":x"),
        ("this:/x", "this", "/x"),
        ("this:x:y", "this", "x:y"),
        ("os.path:join", "os.path", "join"),
        ("this:namespace/Env-v0", "this", "namespace/Env-v0"),
        ("cuda:0x", "cuda", "0x"),
        ("cuda:", "cuda", ""),
        ("cuda:\u0663", "cuda", "\u0663"),  # a digit of another script is no number of a device
        ("cuda: 0", "cuda", " 0"),
        ("cuda.this:0", "cuda.this", "0"),
        ("\uff54\uff48\uff49\uff53:x", "\uff54\uff48\uff49\uff53", "x"),  # wide letters
        ("m\u00fcnchen:x", "m\u00fcnchen", "x"),
    ],
)
def test_whatever_follows_a_module_it_is_a_reference(text, module, name):
    assert split_reference(text) == (module, name)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":x", "this", "cuda:0", "cuda:12", "http://this:80/", "s3://this", "a b:x", "16:9", "this.:x"),
        *(".this:x", "a..b:x", "os . path:x", "th\nis:x", "ALE/Pong-v5", "MiniGrid-this:x", "../this:x", "a-b:x"),
        "this\u200b:x",
    ],
)
def test_what_names_no_module_is_none(text):
    assert split_reference(text) is None
