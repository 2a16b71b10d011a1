"""What the security page promises of the code: nothing in a file is executed, and few modules reach the network."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchdoctor

ROOT = Path(torchdoctor.__file__).parent
CANDIDATES = ROOT / "clinic" / "candidates"  # broken programs to be checked, among them some that are broken like this
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
    if CANDIDATES not in path.parents
}

EXECUTES = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "yaml", "code", "runpy"}
SAFE = {"shell": False, "allow_pickle": False, "weights_only": True}
EXCUSED = {
    ("checks/state_dict_round_trip.py", "imports pickle"),  # the class of an exception
    ("checks/pickles.py", "weights_only"),  # --trust-pickle, by the user's own hand
    ("checks/pickles.py", "imports pickle"),  # the same
}
NETWORK = {
    "socket",
    "socketserver",
    "ssl",
    "http",
    "urllib.request",
    "ftplib",
    "smtplib",
    "requests",
    "httpx",
    "aiohttp",
}
REACHES_OUT = "sinks/webhook.py"
SERVES = "live/"


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def executes(tree: ast.AST) -> Iterator[str]:
    yield from (f"imports {name}" for name in {name.partition(".")[0] for name in imported(tree)} & EXECUTES)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {item.arg: item.value for item in node.keywords}
        if called in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"):
            yield called
        if called == "torch.load" and "weights_only" not in given:
            yield called
        for keyword in given.keys() & SAFE.keys():
            value = given[keyword]
            if not (isinstance(value, ast.Constant) and value.value is SAFE[keyword]):
                yield keyword


def reaches(tree: ast.AST) -> set[str]:
    return {name for name in imported(tree) if any(name == known or name.startswith(f"{known}.") for known in NETWORK)}


def test_nothing_in_a_file_is_executed():
    found = {(place, offence) for place, tree in TREES.items() for offence in executes(tree)}
    assert found == EXCUSED


def test_one_module_reaches_out_and_one_package_serves():
    found = {place: reaches(tree) for place, tree in TREES.items() if reaches(tree)}
    outside = {place: names for place, names in found.items() if not place.startswith(SERVES)}
    assert list(outside) == [REACHES_OUT]
    assert not any("urllib.request" in names for place, names in found.items() if place != REACHES_OUT)


@pytest.mark.parametrize(
    "code",
    [
        "eval(text)",
        "import pickle",
        "from yaml import load",
        "torch.load(path)",
        "torch.load(path, weights_only=flag)",
        "subprocess.run(text, shell=True)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_what_executes_is_noticed(code):
    assert list(executes(ast.parse(code)))


@pytest.mark.parametrize("code", ["import urllib.request", "from urllib import request", "import requests.sessions"])
def test_what_reaches_out_is_noticed(code):
    assert reaches(ast.parse(code))
