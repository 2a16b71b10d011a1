"""Consulting: an interview about a failing run, from its symptoms to one change and its test. No torch, no click.

The answers become evidence on the chart, and the same engine ranks the causes as for a watched run.
"""

from __future__ import annotations

from torchdoctor.consulting.consultation import Consultation, conclude
from torchdoctor.consulting.interview import Interview

__all__ = ["Consultation", "Interview", "conclude"]
