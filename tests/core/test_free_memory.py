import os

import pytest

from rl_lab.core.free_memory import free_host_memory

GIB = 2**30


@pytest.fixture
def system(tmp_path):
    """Return a function that writes files of a made-up system and returns its root."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


MEMINFO = {"proc__meminfo": "MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable:    4194304 kB\n"}


def test_this_machine_says_how_much_is_free():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_host_memory() < total


def test_without_control_groups_it_is_what_the_system_has(system):
    assert free_host_memory(system(**MEMINFO)) == 4 * GIB


def test_a_system_without_meminfo_counts_its_free_pages(system, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 100, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert free_host_memory(system()) == 409_600


def test_and_one_that_says_nothing_is_not_judged(system, monkeypatch):
    monkeypatch.setattr(os, "sysconf_names", {})
    assert free_host_memory(system()) is None


@pytest.mark.parametrize(("limit", "expected"), [("max", 4 * GIB), (str(3 * GIB), 2 * GIB), (str(9 * GIB), 4 * GIB)])
def test_version_2_counts_what_is_used_but_not_what_is_only_cached(system, limit, expected):
    root = system(**MEMINFO, proc__self__cgroup="0::/a/b\n")
    folder = root / "sys/fs/cgroup/a"  # the limit is that of the group above
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{2 * GIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\nfile 99999999\n")
    assert free_host_memory(root) == expected


def test_version_1_has_a_folder_of_its_own(system):
    root = system(**MEMINFO, proc__self__cgroup="5:devices:/\n4:memory:/job/7\n0::/\n")
    folder = root / "sys/fs/cgroup/memory/job/7"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{GIB // 4 * 3}\n")
    (folder / "memory.stat").write_text(f"inactive_file 7\ntotal_inactive_file {GIB // 4}\ntotal_active_file 0\n")
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    (root / "sys/fs/cgroup/memory/memory.usage_in_bytes").write_text("5\n")
    assert free_host_memory(root) == GIB // 2


def test_a_group_over_its_limit_has_nothing_left(system):
    root = system(**MEMINFO, proc__self__cgroup="0::/\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text("10\n")
    (root / "sys/fs/cgroup/memory.current").write_text("20\n")
    assert free_host_memory(root) == 0
