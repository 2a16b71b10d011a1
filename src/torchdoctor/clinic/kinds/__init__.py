"""The kinds of run that the benchmark knows: faults by theme, and what is healthy but does not look so."""

from torchdoctor.clinic.kinds import (
    faults_data,
    faults_loop,
    faults_loss,
    faults_model,
    faults_numbers,
    faults_pairs,
    faults_players,
    faults_reported_data,
    faults_reported_dynamics,
    faults_reported_loop,
    faults_steps,
    healthy_recipes,
    healthy_tasks,
)
from torchdoctor.clinic.kinds.kind import SPLITS, Kind, Split
from torchdoctor.clinic.kinds.loop import Loop

THEMES: dict[str, tuple[Kind, ...]] = {
    "the loop": faults_loop.FAULTS,
    "steps": faults_steps.FAULTS,
    "the loss": faults_loss.FAULTS,
    "data": faults_data.FAULTS,
    "the model": faults_model.FAULTS,
    "numbers": faults_numbers.FAULTS,
    "players, time and memory": faults_players.FAULTS,
    "data, as reported": faults_reported_data.FAULTS,
    "the loop, as reported": (*faults_reported_loop.FAULTS, *faults_reported_loop.HEALTHY),
    "dynamics, as reported": (*faults_reported_dynamics.FAULTS, *faults_reported_dynamics.HEALTHY),
    "two at once": faults_pairs.FAULTS,
    "healthy recipes": healthy_recipes.HEALTHY,
    "healthy tasks": healthy_tasks.HEALTHY,
}
KINDS: dict[str, Kind] = {kind.slug: kind for kinds in THEMES.values() for kind in kinds}

__all__ = ["KINDS", "SPLITS", "THEMES", "Kind", "Loop", "Split"]
