"""Patches: they apply, change one thing, and are not made where the place is not certain."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from tests.consulting.scripts import NANOGPT, PLAIN, TRAINER

from torchdoctor.consulting.patches import patch
from torchdoctor.consulting.question import ConsultError
from torchdoctor.consulting.script import Script
from torchdoctor.records import Suggestion
from torchdoctor.treatments import ACTIONS

SCRIPTS = {"plain": PLAIN, "nanogpt": NANOGPT, "trainer": TRAINER}
PARAMETERS: dict[str, dict[str, float]] = {
    "scale-lr": {"factor": 0.5},
    "set-clip-norm": {"max_norm": 0.5},
    "raise-dropout": {"rate": 0.2},
    "set-weight-decay": {"value": 0.01},
    "restart-warmup": {"steps": 3000.0},
    "train-longer": {"factor": 2.0},
    "set-momentum": {"value": 0.9},
}
MADE = [
    ("plain", "scale-lr", "lr=0.05)  # höher geht nicht"),
    (
        "plain",
        "set-clip-norm",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n        optimizer.step()",
    ),
    ("plain", "raise-dropout", "nn.Dropout(0.2)"),
    ("plain", "set-weight-decay", "lr=0.1, weight_decay=0.01)"),
    ("plain", "set-momentum", "lr=0.1, momentum=0.9)"),
    ("plain", "restart-warmup", "        optimizer.step()  # one step\n        warmup.step()"),
    ("plain", "skip-step", "        if torch.isfinite(loss): optimizer.step()  # one step"),
    ("plain", "shuffle-data", "batch_size=64, shuffle=True)"),
    ("nanogpt", "scale-lr", "learning_rate = 0.0003  # max learning rate"),
    ("nanogpt", "set-clip-norm", "grad_clip = 0.5  # clip"),
    ("nanogpt", "raise-dropout", "dropout = 0.2  # for"),
    ("nanogpt", "set-weight-decay", "weight_decay = 0.01\n"),
    ("nanogpt", "restart-warmup", "warmup_iters = 3000\n"),
    ("nanogpt", "train-longer", "max_iters = 1200000\n"),
    ("trainer", "scale-lr", "learning_rate=2.5e-05,"),
    ("trainer", "set-clip-norm", "num_train_epochs=3, max_grad_norm=0.5,"),
    ("trainer", "set-weight-decay", "num_train_epochs=3, weight_decay=0.01,"),
    ("trainer", "restart-warmup", "num_train_epochs=3, warmup_steps=3000,"),
    ("trainer", "train-longer", "num_train_epochs=6,"),
]


def fix(action: str) -> Suggestion:
    return Suggestion(action, "learning_rate *= 0.5", 0.9, parameters=PARAMETERS.get(action, {}))


@pytest.mark.parametrize(("name", "action", "wanted"), MADE)
@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_it_applies_and_changes_what_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, action: str, wanted: str, ending: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "src" / "train.py"
    file.parent.mkdir()
    file.write_bytes(SCRIPTS[name].replace("\n", ending).encode())
    made = patch(Script.read(file), fix(action))
    assert made.diff, made.where
    assert file.read_bytes() == SCRIPTS[name].replace("\n", ending).encode()  # never applied by us
    (tmp_path / "fix.patch").write_bytes(made.diff.encode())
    subprocess.run(["git", "init", "-q", "."], check=True)
    done = subprocess.run(["git", "-c", "core.autocrlf=false", "apply", "fix.patch"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + made.diff
    text = file.read_bytes().decode()
    assert wanted in text.replace("\r\n", "\n")
    assert text.count("\r\n") == (text.count("\n") if ending == "\r\n" else 0)
    ast.parse(text)


UNSURE = [
    ("two optimizers", PLAIN + "other = torch.optim.Adam(head.parameters(), lr=0.2)\n", "scale-lr", "several lines"),
    ("two steps", PLAIN + "loss.backward()\noptimizer.step()\n", "set-clip-norm", "2 optimizer steps"),
    (
        "one line",
        PLAIN.replace("loss.backward()\n        optimizer", "loss.backward(); optimizer"),
        "set-clip-norm",
        "shares its line",
    ),
    (
        "clips",
        PLAIN.replace("        optimizer.step()", "        clip_grad_norm_(p, limit())\n        optimizer.step()"),
        "set-clip-norm",
        "already clips",
    ),
    ("elsewhere", PLAIN.replace("lr=0.1", "lr=args.lr"), "scale-lr", "no learning rate"),
    (
        "schedule",
        PLAIN + "s = torch.optim.lr_scheduler.StepLR(optimizer, 3)\n",
        "restart-warmup",
        "schedule of its own",
    ),
    (
        "another function",
        "import torch\ndef make():\n    net = Net()\n    return torch.optim.SGD(net.parameters(), lr=1.0)\n"
        "def setup():\n    net = Net()\n    opt = torch.optim.SGD(net.parameters(), lr=1.0)\n"
        "def train(model, opt):\n    loss.backward()\n    opt.step()\n",
        "set-clip-norm",
        "another name",
    ),
    (
        "warm-up elsewhere",
        "import torch\ndef setup():\n    opt = torch.optim.SGD(net.parameters(), lr=1.0)\n"
        "def train(model, opt):\n    loss.backward()\n    opt.step()\n",
        "restart-warmup",
        "another function",
    ),
    ("validation", "val_loader = DataLoader(data, shuffle=False)\n", "shuffle-data", "none is clearly"),
    ("zeroed", PLAIN, "fix-zero-grad", "line 10"),
    ("groups", PLAIN.replace("model.parameters()", "groups(model)"), "set-clip-norm", "parameters of one model"),
    ("architecture", PLAIN, "add-residuals", "needs a person"),
    ("empty", "", "scale-lr", "By hand"),
]


@pytest.mark.parametrize(("text", "action", "reason"), [case[1:] for case in UNSURE], ids=[case[0] for case in UNSURE])
def test_where_the_place_is_not_certain_there_is_no_patch(text: str, action: str, reason: str) -> None:
    made = patch(Script.of("train.py", text), fix(action))
    assert not made.diff and reason in made.where and made.code


@pytest.mark.parametrize("action", ["change-precision", "raise-dropout", "shuffle-data", "fix-loss", "augment-data"])
def test_what_has_nothing_to_do_with_the_optimizer_does_not_belong_beside_it(action: str) -> None:
    made = patch(Script.of("train.py", ACCUMULATED), fix(action))
    assert not made.diff and made.where.endswith(". Make it by hand.")


def test_a_scaler_is_unscaled_before_clipping() -> None:
    text = PLAIN.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
        "optimizer.step()", "scaler.step(optimizer)"
    )
    diff = patch(Script.of("train.py", text), fix("set-clip-norm")).diff
    assert "+        scaler.unscale_(optimizer)\n+        torch.nn.utils.clip_grad_norm_(" in diff


ACCUMULATED = (
    "import torch\nopt = torch.optim.AdamW(net.parameters(), lr=1e-3)\nfor i, batch in enumerate(loader):\n"
    "    loss = net(batch) / 4\n    loss.backward()\n    if i % 4 == 3:\n        opt.step()\n        opt.zero_grad()\n"
)
ACCELERATED = (
    "from accelerate import Accelerator\nacc = Accelerator()\nopt = torch.optim.AdamW(net.parameters(), lr=1e-3)\n"
    "for batch in loader:\n    loss = net(batch)\n    acc.backward(loss)\n    opt.step()\n"
)
SCALED = ACCUMULATED.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
    "opt.step()", "scaler.step(opt)"
)
LIGHTNING = "import lightning as L\ntrainer = L.Trainer(max_epochs=3)\ntrainer.fit(net)\n"
FABRIC = ACCELERATED.replace("accelerate import Accelerator", "lightning.fabric import Fabric").replace(
    "Accelerator", "Fabric"
)
CLIPPED = [
    ("accumulated", ACCUMULATED, "+        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)\n         opt.step()"),
    (
        "scaled",
        SCALED,
        "+        scaler.unscale_(opt)\n+        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)\n",
    ),
    ("accelerated", ACCELERATED, "+    acc.clip_grad_norm_(net.parameters(), 0.5)\n     opt.step()"),
    (
        "accelerated and accumulated",
        ACCELERATED.replace("    loss = ", "    acc.accumulate(net)\n    loss = "),
        "+    if acc.sync_gradients:\n+        acc.clip_grad_norm_(net.parameters(), 0.5)\n     opt.step()",
    ),
    ("fabric", FABRIC, "+    acc.clip_gradients(net, opt, max_norm=0.5)\n     opt.step()"),
    ("lightning", LIGHTNING, "+trainer = L.Trainer(max_epochs=3, gradient_clip_val=0.5)\n"),
]


@pytest.mark.parametrize(("text", "wanted"), [case[1:] for case in CLIPPED], ids=[case[0] for case in CLIPPED])
def test_each_kind_of_loop_is_clipped_in_its_own_way(text: str, wanted: str) -> None:
    assert wanted in patch(Script.of("train.py", text), fix("set-clip-norm")).diff


BY_HAND = [
    (
        "no optimizer",
        SCALED.replace("opt = torch", "other = torch").replace("AdamW", "Mine"),
        "scaler.unscale_(opt)\ntorch.",
    ),
    ("accelerated", ACCELERATED.replace("AdamW", "Mine"), "acc.clip_grad_norm_(model.parameters(), 0.5)"),
    ("lightning", LIGHTNING.replace("L.Trainer(max_epochs=3)", "make()"), "Trainer(gradient_clip_val=0.5)"),
    ("plain", PLAIN.replace("torch.optim.SGD", "Mine"), "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)"),
    ("own setting", "grad_clip = limit()\ngrad_clip = 3.0\ngrad_clip = 4.0\n", "learning_rate *= 0.5"),
]


@pytest.mark.parametrize(("text", "code"), [case[1:] for case in BY_HAND], ids=[case[0] for case in BY_HAND])
def test_without_a_patch_the_lines_are_those_of_the_script(text: str, code: str) -> None:
    made = patch(Script.of("train.py", text), fix("set-clip-norm"))
    assert not made.diff and code in made.code


def test_a_step_for_several_losses_is_not_skipped_for_the_last_of_them() -> None:
    for text in (ACCUMULATED, ACCELERATED.replace("from", "import torch\nfrom", 1)):
        made = patch(Script.of("train.py", text), fix("skip-step"))
        assert not made.diff and "no loss of its own" in made.where


def test_the_step_of_another_function_is_not_that_of_this_backward() -> None:
    text = "opt = torch.optim.SGD(net.parameters())\ndef one():\n    loss.backward()\ndef two():\n    opt.step()\n"
    made = patch(Script.of("train.py", text), fix("set-clip-norm"))
    assert not made.diff and "has no optimizer step after a backward()" in made.where


def test_a_missing_zero_grad_is_added() -> None:
    diff = patch(Script.of("train.py", PLAIN.replace("        optimizer.zero_grad()\n", "")), fix("fix-zero-grad")).diff
    assert "+        optimizer.zero_grad(set_to_none=True)\n" in diff


def test_every_action_is_patched_or_explained() -> None:
    for action in ACTIONS:
        values = {name: (low + high) / 2 for name, (low, high) in action.parameters.items()}
        made = patch(Script.of("train.py", NANOGPT), Suggestion(action.slug, "x = 1", 0.9, parameters=values))
        assert made.diff or made.where


@pytest.mark.parametrize(
    "content",
    [
        b"def (",
        b"\xff\xfe",
        b"(" * 100_000,
        b"x = 1\rlr = 2\n",
        b"\xef\xbb\xbflr = 1\n",
        b"lr = '\x00'",
        b"#" * (2**20 + 1),
    ],
    ids=["syntax", "bytes", "deep", "cr", "bom", "nul", "large"],
)
def test_hostile_scripts_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.py").write_bytes(content)
    with pytest.raises(ConsultError):
        Script.read(tmp_path / "train.py")


def test_a_script_is_never_run(tmp_path: Path) -> None:
    bomb = f"open({str(tmp_path / 'ran')!r}, 'w')\nlr = 0.1\n"
    (tmp_path / "train.py").write_text(bomb, encoding="utf-8")
    assert patch(Script.read(tmp_path / "train.py"), fix("scale-lr")).diff
    assert not (tmp_path / "ran").exists()


def test_a_default_of_the_command_line_is_told() -> None:
    text = "parser.add_argument('--lr', type=float, default=0.1)\n"
    made = patch(Script.of("train.py", text), fix("scale-lr"))
    assert "default=0.05" in made.diff and "if you pass --lr yourself" in made.where


def test_the_model_may_be_an_argument() -> None:
    text = (
        "import torch\ndef setup():\n    opt = torch.optim.SGD(model.parameters(), lr=1.0)\n"
        "def train(model, opt):\n    loss.backward()\n    opt.step()\n"
    )
    assert (
        "+    torch.nn.utils.clip_grad_norm_(model.parameters()"
        in patch(Script.of("t.py", text), fix("set-clip-norm")).diff
    )


@pytest.mark.parametrize(
    ("text", "action", "parameters", "reason"),
    [
        ("lr = 6e-4\n", "scale-lr", {"factor": 0.06}, "the run had 0.01: change it where 0.01 was set"),
        ("warmup_iters = 2000\n", "restart-warmup", {"steps": 1000.0}, "already warms up for 2000 steps"),
        ("grad_clip = 0.5\n", "set-clip-norm", {"max_norm": 1.0}, "already clips at 0.5"),
    ],
)
def test_what_the_script_has_already_is_not_undone(text: str, action: str, parameters: dict, reason: str) -> None:
    made = patch(Script.of("train.py", text), Suggestion(action, "", 0.9, parameters=parameters), 0.01)
    assert made.diff == "" and reason in made.where


def test_a_dropout_that_only_the_script_knows_is_raised_from_there() -> None:
    made = patch(Script.of("train.py", "dropout = 0.2\n"), Suggestion("raise-dropout", "", 0.9))
    assert "+dropout = 0.3\n" in made.diff
    assert (
        "+lr = 6\n"
        in patch(Script.of("t.py", "lr = 20\n"), Suggestion("scale-lr", "", 0.9, parameters={"factor": 0.3})).diff
    )


def test_where_a_script_has_it_already_nothing_is_to_be_inserted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\ngrad_clip = 1.0\nopt = torch.optim.Adam(model.parameters(), lr=0.001)\n"
        "loss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)\nopt.step()\n"
    )
    clip = Suggestion("set-clip-norm", "grad_clip = 1.0", 0.8, "apply", {"max_norm": 1.0})
    found = patch(Script.read(script), clip)
    assert not found.diff and "already" in found.where and "Insert" not in found.where
