"""The frame of a check-up: how models are called, what becomes of results, and what is asked of every check."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch
from tests.checks.sound import SOUND, Case, classes, text
from torch import Tensor, nn
from torch.nn import functional

import torchdoctor
from torchdoctor import Doctor
from torchdoctor.checks import CHECKS, build
from torchdoctor.checks import checkup as module
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.checkup import Checkup, checkup
from torchdoctor.checks.subject import Subject
from torchdoctor.errors import PatientError, SettingsError, TorchDoctorError
from torchdoctor.records import CheckResult
from torchdoctor.reports import checkup_sarif
from torchdoctor.treatments.actions import ACTIONS

FAILED = CheckResult(
    "gradient-flow",
    "CK03",
    "failed",
    "no gradient reaches <b>a|b</b>\x1b[31m",
    ("a.weight",),
    "Remove detach().",
    "critical",
    2.0,
    1.0,
)
SAMPLE = Checkup(
    (
        CheckResult("memory-use", "CK04", "passed", "a pass takes 2 MB"),
        CheckResult("normalization-layers", "CK08", "failed", "eps is 1", severity="warning"),
        FAILED,
        CheckResult("position-embeddings", "CK07", "skipped", "no attention"),
    ),
    ("the batch was reduced",),
    {"model": "Net"},
    1.5,
)


# ── every check ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_is_complete(check):
    doc = check.__doc__ or ""
    for section in ("## What it checks", "## How it is told apart", "## What to do", "## Example"):
        assert section in doc, section
    assert check.code.startswith("CK") and len(check.code) == 4
    assert check.name == check.name.lower() and " " not in check.name
    assert set(check.suggests) <= {action.slug for action in ACTIONS}
    assert all(hasattr(check(), item.name) for item in fields(check))
    with pytest.raises(FrozenInstanceError):
        check().code = "X"


def test_codes_and_names_are_unique():
    assert len({check.code for check in CHECKS}) == len({check.name for check in CHECKS}) == len(CHECKS)


def test_checks_are_chosen_by_name_code_and_speed():
    assert [check.code for check in build(select="CK03,memory-use")] == ["CK03", "CK04"]
    assert [check.code for check in build(select=["ck03", "memory_*"])] == ["CK03", "CK04"]
    assert all(check.quick for check in build(quick=True))
    assert len(build(quick=True)) < len(build())
    assert "gradient-flow" not in {check.name for check in build(ignore=["CK03"])}
    assert build(select=["gradient-flow"], thresholds={"CK03": {"ratio": 7.0}})[0].ratio == 7.0
    with pytest.raises(SettingsError, match="Did you mean 'ratio'"):
        build(thresholds={"gradient-flow": {"raito": 1}})
    with pytest.raises(SettingsError, match="ignore: there is no check"):
        build(ignore=["nothing"])


# ── how models are called ────────────────────────────────────────────────────────────────────────────────────────


class TakesDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"prediction": self.body(batch["x"] + batch["bias"])}


class Detector(nn.Module):
    """As torchvision's: in training, a dict of losses comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 2)

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Any:
        out = self.body(images)
        if targets is None:
            return out
        return {"box_loss": functional.mse_loss(out, targets), "class_loss": out.square().mean()}


def whole_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


X, Y = torch.randn(6, 4), torch.randn(6, 1)
CALLS: dict[str, Callable[[], Case]] = {
    "module loss": lambda: Case(nn.Linear(4, 1), nn.MSELoss(), (X, Y)),
    "function": lambda: Case(nn.Linear(4, 1), functional.mse_loss, (X, Y)),
    "loss of the output alone": lambda: Case(nn.Linear(4, 1), lambda out: out.square().mean(), X),
    "reconstruction": lambda: Case(nn.Linear(4, 4), nn.MSELoss(), X),
    "loss without reduction": lambda: Case(nn.Linear(4, 1), nn.MSELoss(reduction="none"), (X, Y)),
    "list batch": lambda: Case(nn.Linear(4, 1), nn.MSELoss(), [X, Y]),
    "two inputs": lambda: Case(nn.Bilinear(4, 4, 1), nn.MSELoss(), (X, X, Y)),
    "dict by keyword": lambda: SOUND["masked language model"](),
    "dict as one argument": lambda: Case(TakesDict(), nn.MSELoss(), {"x": X, "bias": X[:1], "y": Y}),
    "logits of every position": lambda: Case(
        nn.Sequential(nn.Embedding(29, 8), nn.Linear(8, 29)), nn.CrossEntropyLoss(), text()
    ),
    "logits and loss": lambda: SOUND["nanoGPT"](),
    "dict of losses": lambda: Case(Detector(), None, (X, torch.randn(6, 2))),
    "whole step": lambda: Case(nn.Linear(4, 1), whole_step, (X, Y)),
    "two models": lambda: SOUND["gan"](),
    "a list of models": lambda: Case([nn.Linear(4, 2), nn.Linear(2, 1)], pair_step, (X, Y)),
    "data parallel": lambda: Case(nn.DataParallel(nn.Linear(4, 1)), nn.MSELoss(), (X, Y)),
}


def pair_step(models: dict[str, nn.Module], batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.mse_loss(models["1"](models["0"](batch[0])), batch[1])


@pytest.mark.parametrize("name", CALLS)
def test_models_are_called_as_people_write_them(name):
    case = CALLS[name]()
    subject = Subject.of(case.model, case.loss_fn, case.batch, case.optimizer)
    subject.find_calling()
    assert not subject.broken and not subject.no_loss
    assert subject.loss().dim() == 0
    assert any(gradient is not None for gradient in subject.gradients().values())


KINDS = {
    "nanoGPT": ("language-model", 29, True),
    "hugging face, labels shifted by the model": ("language-model", 29, True),
    "masked language model": ("language-model", 30, False),
    "mlp with dropout": ("classification", 4, False),
    "segmentation": ("classification", 3, False),
    "regression": ("regression", None, False),
    "autoencoder": ("reconstruction", None, False),
    "gan": ("other", None, False),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_subject_knows_what_it_is(name):
    torch.manual_seed(0)
    case = SOUND[name]()
    subject = Subject.of(case.model, case.loss_fn, case.batch)
    subject.find_calling()
    assert (subject.kind, subject.classes, subject.predicts_next) == KINDS[name]


def equation(model: nn.Module, batch: Tensor) -> Tensor:
    """The slope is the value's opposite, everywhere."""
    x = batch.clone().requires_grad_(True)
    value = model(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return (slope + value).square().mean()


def test_a_loss_may_take_a_derivative():
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    result = checkup(model, equation, torch.rand(12, 1), ignore=["compile-agrees"])
    assert not result.failed, result
    assert not [item for item in result.results if "could not be done" in item.message], result


def test_a_language_model_says_its_vocabulary_and_context():
    case = SOUND["nanoGPT"]()
    subject = Subject.of(case.model, None, case.batch)
    subject.find_calling()
    assert (subject.vocabulary, subject.context) == (29, 32)


def test_bad_arguments_are_the_callers_mistake():
    with pytest.raises(PatientError, match="needs a batch"):
        checkup(nn.Linear(1, 1), nn.MSELoss())
    with pytest.raises(PatientError, match="loss_fn must be callable"):
        checkup(nn.Linear(1, 1), 3, X)
    with pytest.raises(PatientError, match="lazy"):
        checkup(nn.LazyLinear(1), nn.MSELoss(), (X, Y))
    with pytest.raises(PatientError, match=r"nn\.Module"):
        checkup("model", nn.MSELoss(), (X, Y))


# ── the check-up ─────────────────────────────────────────────────────────────────────────────────────────────────


class Raises(Check):
    code, name = "CK98", "raises"
    error: Exception = ValueError("first line\nsecond line")

    def run(self, subject: Subject) -> Outcome:
        raise self.error


def test_a_check_that_raises_is_skipped_with_the_reason(monkeypatch):
    told = type("Told", (Raises,), {"error": CannotTell("it has no wings")})
    monkeypatch.setattr(module, "build", lambda **options: (Raises(), told()))
    one, two = checkup(nn.Linear(4, 1), nn.MSELoss(), (X, Y)).results
    assert (one.status, one.message) == ("skipped", "the check failed to run: ValueError: first line second line")
    assert (two.status, two.message) == ("skipped", "it has no wings")


def test_what_does_not_run_is_said_once():
    result = checkup(nn.Linear(5, 1), nn.MSELoss(), (X, Y))
    assert [item.name for item in result.failed if item.severity == "critical"] == ["forward-shapes"]
    assert "mat1 and mat2" in result["forward-shapes"].message
    assert "see forward-shapes" in result["gradient-flow"].message


def test_time_that_is_used_up_is_said():
    result = checkup(nn.Linear(4, 1), nn.MSELoss(), (X, Y), budget=1e-9)
    late = [item for item in result.results if item.details.get("out_of_time")]
    assert len(late) > 15 and all("used up" in item.message for item in late)
    assert result["data-quality"].status == "passed"  # needs no pass
    assert str(result).startswith("Unfinished: ")
    assert "not done in the time that was given" in str(result)


def test_a_large_batch_is_reduced_and_that_is_said():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    given = torch.randn(100_000, 64), torch.randn(100_000, 1)
    result = checkup(model, nn.MSELoss(), given, select=["CK03"], budget=0.05)
    assert result.context["samples"] < result.context["samples_given"] == 100_000
    assert "reduced from 100000 samples" in result.notes[0]


def test_progress_is_told():
    seen: list[Any] = []
    checkup(nn.Linear(4, 1), nn.MSELoss(), (X, Y), select="CK01,CK03", progress=lambda *told: seen.append(told))
    assert seen == [("parameter-initialization", 0, 2), ("gradient-flow", 1, 2)]


def test_results_are_the_same_twice():
    def told() -> list[tuple[str, str]]:
        torch.manual_seed(0)
        case = SOUND["mlp with dropout"]()
        done = checkup(case.model, case.loss_fn, case.batch, quick=True)
        return [(item.status, item.message) for item in done.results]

    assert told() == told()


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_are_ordered_counted_and_found():
    assert [item.code for item in SAMPLE.failed] == ["CK03", "CK08"]
    assert SAMPLE.severity == "critical" and not SAMPLE
    assert SAMPLE["gradient-flow"] is SAMPLE["CK03"] is FAILED
    assert SAMPLE.to_dict()["counts"] == {"passed": 1, "failed": 2, "skipped": 1}
    with pytest.raises(KeyError):
        SAMPLE["nothing"]


def test_the_text_tells_failures_first_and_no_escape_codes():
    told = str(SAMPLE)
    assert told.startswith("2 of 3 checks failed, first gradient-flow")
    assert told.index("critical CK03") < told.index("warning  CK08") < told.index("passed") < told.index("skipped")
    assert "What to do: Remove detach()." in told and "Where: a.weight" in told and "\x1b" not in told
    assert str(Checkup()) == "Nothing was checked."


@pytest.mark.parametrize("suffix", [".html", ".json", ".sarif", ".md", ".txt"])
def test_a_check_up_is_saved_by_its_suffix(suffix, tmp_path):
    place = SAMPLE.save(tmp_path / f"checkup{suffix}")
    content = place.read_text(encoding="utf-8")
    assert "gradient-flow" in content and "\x1b" not in content
    assert ("<b>a|b</b>" in content) == (suffix in (".json", ".sarif", ".txt"))


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(TorchDoctorError, match=r"checkup\.html"):
        SAMPLE.save(tmp_path / "checkup.pdf")


def test_html_is_a_page_and_a_fragment():
    assert SAMPLE._repr_html_().startswith("<style>")
    assert "<script" not in SAMPLE._repr_html_()


def test_sarif_is_what_code_hosts_read():
    log = json.loads(checkup_sarif.render(SAMPLE, "train.py"))
    run = log["runs"][0]
    assert log["version"] == "2.1.0" and run["tool"]["driver"]["name"] == "torchdoctor"
    assert [item["kind"] for item in run["results"]] == ["pass", "fail", "fail", "notApplicable"]
    assert [item["level"] for item in run["results"]] == ["none", "warning", "error", "none"]
    for item in run["results"]:
        assert run["tool"]["driver"]["rules"][item["ruleIndex"]]["id"] == item["ruleId"]
        assert item["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
    assert run["results"][2]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "a.weight"


# ── with a doctor ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_doctors_check_up_is_in_the_journal_of_the_run(tmp_path):
    torch.manual_seed(0)
    model, batch = nn.Linear(12, 4), classes((12,), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    with Doctor(model, optimizer, loss_fn, journal=tmp_path, settings={"quiet": True}) as doctor:
        done = doctor.checkup(batch, quick=True)
        for _ in range(3):
            loss = loss_fn(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.log_loss(loss)
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
    checks = [line for line in lines if line["type"] == "check"]
    assert [line["name"] for line in checks] == [item.name for item in done.results]
    assert all(line["status"] in ("passed", "skipped") and line["step"] == 0 for line in checks), checks
    report = torchdoctor.diagnose(tmp_path)
    assert report.step == 2 and report.health == "healthy"


def test_a_doctors_check_up_takes_several_models():
    case = SOUND["gan"]()
    with Doctor(case.model, case.optimizer, settings={"quiet": True}) as doctor:
        assert doctor.checkup(case.batch, case.loss_fn, quick=True)
