"""The kinds of run that the benchmark knows: faults by theme, and what is healthy but does not look so."""

from torchdoctor.clinic.kinds import (
    apart_inputs,
    apart_leaks,
    apart_loop,
    apart_losses,
    apart_models,
    apart_numbers,
    apart_pairs,
    apart_parameters,
    apart_players,
    apart_recipes,
    apart_rules,
    apart_steps,
    apart_tasks,
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
    "written apart: the loop": (*apart_loop.FAULTS, *apart_parameters.FAULTS),
    "written apart: steps": apart_steps.FAULTS,
    "written apart: the loss": apart_losses.FAULTS,
    "written apart: data": (*apart_inputs.FAULTS, *apart_leaks.FAULTS),
    "written apart: the model": apart_models.FAULTS,
    "written apart: numbers": apart_numbers.FAULTS,
    "written apart: players, time and memory": apart_players.FAULTS,
    "written apart: two at once": apart_pairs.FAULTS,
    "written apart: healthy recipes": (*apart_recipes.HEALTHY, *apart_rules.HEALTHY),
    "written apart: healthy tasks": (*apart_tasks.HEALTHY, *apart_players.HEALTHY),
}
KINDS: dict[str, Kind] = {kind.slug: kind for kinds in THEMES.values() for kind in kinds}

__all__ = ["KINDS", "SPLITS", "THEMES", "Kind", "Loop", "Split"]
