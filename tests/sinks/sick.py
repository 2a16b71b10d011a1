"""A sick run as records, for the tests of sinks and for the programs that they start."""

from __future__ import annotations

from torchdoctor.records import Diagnosis, Suggestion, Symptom
from torchdoctor.reports.report import Report

HALVE = Suggestion("scale-lr", "learning_rate *= 0.5\n# in every group", 0.9, reason="it had just risen")


def spike(severity="warning", first=120, last=120, name="loss-spike", code="LO01", **more):
    return Symptom(name, code, severity, 0.9, first, last, message="loss 9.1 is 4.2 times its recent 2.2", **more)


def event(kind, symptom, step=None):
    step = symptom.last_step if step is None else step
    return {"type": "symptom", "event": kind, "step": step, **symptom.to_dict()}


def cause(*names, step=120, cause="lr-too-high", probability=0.8):
    item = Diagnosis(1, cause, probability, ("it had risen",), names, (HALVE,), (0,))
    return {"type": "diagnosis", "step": step, **item.to_dict()}


OPENED = [event("opened", spike()), cause("loss-spike")]
WORSE = [event("changed", spike("critical", 120, 130)), cause("loss-spike", step=130, probability=0.9)]
OVER = [event("closed", spike("critical", 120, 140), 160)]
END = [{"type": "end", "step": 200}]
HEALTHY = Report(step=200)
SICK = Report(
    step=200,
    symptoms=(spike("critical", 120, 140), spike("warning", 150, 200, "gradient-explosion", "GR01")),
    diagnoses=(Diagnosis(1, "lr-too-high", 0.9, (), ("loss-spike", "gradient-explosion"), (HALVE,), (0, 1)),),
    suggestions=(HALVE,),
)
HOSTILE = (
    '<script>alert(1)</script> <!channel> @everyone \x1b[2J\x1b]0;owned\x07 ``` {{x}} "quoted" \\ \u202e end\nline'
)
