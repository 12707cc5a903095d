"""Stand-ins for `ssh` and `rsync` that reach a directory of this machine; what they run there is real."""

import os
import sys
from pathlib import Path

SSH = """#!{python}
import os, sys
words = sys.argv[1:]
while words[0] == "-o":
    words = words[2:]
host, command = words[0], " ".join(words[1:])  # as ssh does: one string for the other machine's shell
if host == "nowhere":
    print("ssh: connect to host nowhere port 22: No route to host", file=sys.stderr)
    sys.exit(255)
os.chdir({home!r})
os.environ["HOME"] = {home!r}
os.execv("/bin/sh", ["sh", "-c", command])
"""
RSYNC = """#!{python}
import fnmatch, os, shutil, sys
from pathlib import Path
excluded, places, relative, words = [], [], False, sys.argv[1:]
while words:
    word = words.pop(0)
    if word == "-e":
        words.pop(0)
    elif word.startswith("--exclude="):
        excluded.append(word.split("=", 1)[1])
    elif word.startswith("--filter="):
        assert word == "--filter=:- .gitignore", word
    elif word.startswith("-"):
        relative = relative or "R" in word
    else:
        places.append(word)
def local(place):
    return os.path.join({home!r}, place.split(":", 1)[1]) if ":" in place else place
source, target = map(local, places)
if not os.path.exists(source):
    print(f"rsync: link_stat {{source}} failed: No such file or directory (2)", file=sys.stderr)
    sys.exit(23)
def ignored(folder, names):
    at_root = os.path.normpath(folder) == os.path.normpath(source)
    return [n for n in names if n in excluded or (at_root and "/" + n in excluded)]
if relative:
    target = os.path.join(target, source)
elif not source.endswith("/"):
    target = os.path.join(target, os.path.basename(source))
def copied(one, other):
    return other if "--ignore-existing" in sys.argv and os.path.exists(other) else shutil.copy2(one, other)
shutil.copytree(source, target, ignore=ignored, copy_function=copied, dirs_exist_ok=True, symlinks=False)
"""


def make_far_machine(folder: Path) -> Path:
    """Write the stand-ins into `folder/bin` and return the other machine's home directory."""
    home = folder / "far"
    home.mkdir()
    (folder / "bin").mkdir()
    for name, text in (("ssh", SSH), ("rsync", RSYNC)):
        file = folder / "bin" / name
        file.write_text(text.format(python=sys.executable, home=str(home)))
        file.chmod(0o755)
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return home
