"""The names that must exist, as data."""

from __future__ import annotations


def _names(text: str) -> list[str]:
    return text.split()


SYMPTOMS = _names("""
nan-or-inf gradient-explosion gradient-vanishing gradient-instability no-gradient loss-spike loss-divergence
loss-plateau not-learning slow-learning loss-oscillation unexpected-initial-loss suspiciously-low-loss overfitting
underfitting double-descent validation-anomaly dead-units saturated-activations activation-explosion collapsed-output
update-ratio-abnormal frozen-weights weight-growth skipped-steps data-starvation step-time-regression memory-growth
rank-divergence straggler-rank multiple-pathologies
""")

CAUSES = _names("""
lr-too-high lr-too-low warmup-missing schedule-error clip-missing clip-too-tight optimizer-misconfigured
missing-zero-grad accumulation-error parameters-not-in-optimizer frozen-by-mistake stale-parameters detached-graph
stale-loss loss-misuse eval-mode-in-training batchnorm-misuse bad-initialization saturating-nonlinearity
missing-normalization missing-skip-connections insufficient-capacity memorization saddle-point batch-size-unsuited
stopped-too-early over-regularized under-regularized unnormalized-inputs unnormalized-targets nan-in-data bad-batch
label-noise-or-misalignment class-imbalance data-order repeated-batch train-val-mismatch representation-collapse
mode-collapse policy-collapse adversarial-imbalance information-leak numeric-precision resume-error hardware-fault
converged unknown
""")

ACTIONS = _names("""
scale-lr set-clip-norm set-clip-value adaptive-clip skip-step skip-window roll-back restart-warmup change-schedule
change-betas change-eps set-momentum set-weight-decay raise-dropout lower-dropout add-parameters-to-optimizer unfreeze
zero-gradients set-train-mode change-precision reinitialize-dead-units stop-at-best train-longer use-adamw
switch-optimizer change-batch-size fix-loss fix-zero-grad fix-accumulation fix-mask shuffle-data normalize-inputs
normalize-targets clean-data rebalance-classes augment-data more-data use-relu-family add-residuals add-normalization
use-gru-or-layernorm-rnn spectral-norm initialize resize-model transfer-learning ensemble cross-validate keep-training
ask-for-help
""")

NOT_BUILT_YET: frozenset[str] = frozenset()
"""Names that later work brings; empty when the catalogue is whole."""
