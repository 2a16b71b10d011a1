"""Every name can be explained, by the same text on the screen and in the documentation."""

import re

import pytest
from click.testing import CliRunner
from tests import taxonomy

from torchdoctor.checks import CHECKS
from torchdoctor.cli.explain import explain
from torchdoctor.diagnoses import CAUSES
from torchdoctor.reports.catalogue import entries, find
from torchdoctor.symptoms import DETECTORS
from torchdoctor.treatments import ACTIONS

WANTED = [name for name in taxonomy.SYMPTOMS + taxonomy.CAUSES + taxonomy.ACTIONS if name not in taxonomy.NOT_BUILT_YET]
HEADINGS = {
    "finding": ("What it means", "How it is told apart", "What to do", "How to see that it is cured", "When to stop"),
    "cause": ("What it is", "How to confirm it", "What to change", "How to see it cured", "When to stop"),
    "action": ("When it helps", "What to change", "How to see that it helped", "When to stop", "Suggested for"),
    "check": ("What it checks", "How it is told apart", "What to do", "Example", "When it is done"),
}
CODES = [check.code for check in CHECKS]


@pytest.mark.parametrize("name", WANTED + CODES)
def test_every_name_is_explained(name):
    printed = CliRunner().invoke(explain, [name])
    assert printed.exit_code == 0, printed.output
    entry = find(name)
    assert entry.page in printed.output
    assert entry.summary
    for page in re.split(r"\n\n(?=# CK)", entry.page):  # a check may be called like the cause that it looks for
        found = re.findall("^## (.*)$", page, flags=re.MULTILINE)
        kind = "check" if page.startswith("# CK") else entry.kind
        assert set(HEADINGS[kind]) <= set(found)
        assert len(found) == len(set(found))


def test_names_are_of_the_kind_that_the_taxonomy_says():
    kinds = {entry.name: entry.kind for entry in entries() if entry.kind != "check"}
    for kind, names in (("finding", taxonomy.SYMPTOMS), ("cause", taxonomy.CAUSES), ("action", taxonomy.ACTIONS)):
        assert {name for name in names if kinds.get(name) != kind} <= taxonomy.NOT_BUILT_YET


def test_nothing_that_is_built_is_listed_as_missing():
    assert not taxonomy.NOT_BUILT_YET & {entry.name for entry in entries()}


def test_names_are_unique_over_all_kinds():
    names = [rule.name for rule in (*DETECTORS, *CAUSES)] + [action.slug for action in ACTIONS]
    assert len(names) == len(set(names))


def test_a_page_leads_on():
    assert "`lr-too-high`" in find("gradient-explosion").page
    assert "`scale-lr`" in find("lr-too-high").page
    assert "`lr-too-high`" in find("scale-lr").page
    assert "0.1 to 10" in find("gradient-vanishing").page
    assert "`rank-divergence`" in find("synchronize-ranks").page


def test_what_the_paper_says_is_on_the_page_with_its_own_thresholds():
    page = find("gradient-explosion").page
    assert "exceeds 10, or μ + 3σ" in page and "`limit` = 10.0, `k` = 3.0, `window` = 50" in page
    assert "0.2 (moderate) or 0.5 (severe)" in find("overfitting").page
    assert "preset paper" not in find("nan-or-inf").page  # the same rule in both
