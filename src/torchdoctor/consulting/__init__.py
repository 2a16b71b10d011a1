"""Consulting: an interview about a sick run, from its symptoms to one change and the test of it. No torch, no click.

The answers become evidence on the chart, and the causes are ranked by the engine that ranks those of a watched run.
"""

from __future__ import annotations

from torchdoctor.consulting.consultation import Consultation, conclude
from torchdoctor.consulting.interview import Interview

__all__ = ["Consultation", "Interview", "conclude"]
