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
    sealed_inputs,
    sealed_leaks,
    sealed_loop,
    sealed_losses,
    sealed_models,
    sealed_numbers,
    sealed_pairs,
    sealed_parameters,
    sealed_players,
    sealed_recipes,
    sealed_rules,
    sealed_steps,
    sealed_tasks,
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
    "written apart: the loop": (*sealed_loop.FAULTS, *sealed_parameters.FAULTS),
    "written apart: steps": sealed_steps.FAULTS,
    "written apart: the loss": sealed_losses.FAULTS,
    "written apart: data": (*sealed_inputs.FAULTS, *sealed_leaks.FAULTS),
    "written apart: the model": sealed_models.FAULTS,
    "written apart: numbers": sealed_numbers.FAULTS,
    "written apart: players, time and memory": sealed_players.FAULTS,
    "written apart: two at once": sealed_pairs.FAULTS,
    "written apart: healthy recipes": (*sealed_recipes.HEALTHY, *sealed_rules.HEALTHY),
    "written apart: healthy tasks": (*sealed_tasks.HEALTHY, *sealed_players.HEALTHY),
}
KINDS: dict[str, Kind] = {kind.slug: kind for kinds in THEMES.values() for kind in kinds}

__all__ = ["KINDS", "SPLITS", "THEMES", "Kind", "Loop", "Split"]
