"""The words of the names in other people's logs.

>>> taken_apart("validation/global_avg_loss", 5)
Name(original='validation/global_avg_loss', words=('global', 'avg', 'loss'), split='val', count=5)
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Split = Literal["train", "val", "test", ""]


def listed(words: str) -> frozenset[str]:
    """The words of a line, as a set.

    >>> sorted(listed("loss cost"))
    ['cost', 'loss']
    """
    return frozenset(words.split())


_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")
_WRITTEN_TOGETHER = (
    *(("mAP", " map"), ("mIoU", " miou "), ("mIOU", " miou "), ("IoU", " iou "), ("R-squared", " r2 ")),
    *(("GiB", " gib "), ("MiB", " mib "), ("KiB", " kib ")),
)
SPLITS: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trn", "tr", "learn"), "train"),
    **dict.fromkeys(("treino", "treinamento", "entrenamiento", "entreno", "entrainement", "addestramento"), "train"),
    **dict.fromkeys(
        ("val", "valid", "validation", "validate", "va", "vld", "eval", "evaluation", "dev", "heldout", "cv"), "val"
    ),
    **dict.fromkeys(("validacao", "validacion", "validazione", "validierung", "validasi"), "val"),
    **dict.fromkeys(("test", "testing", "teste", "prueba"), "test"),
}
_RECALL = re.compile(r"(?<![A-Za-z])R@(?=\d)|(?<=_)R(?=(?:1|5|10)$)")
"""Recall, the share of queries whose answer is among the first: R@5, and R5 after "a_to_b"."""
_LETTER = re.compile(
    r"(?<![A-Za-z])L_(?=[A-Za-z])|(?<![\w.-])l_(?=(?:[dg]|total|pix|pixel|percep|perceptual|style|content|gan|adv|real|fake|"
    r"feat|feature|kl|kld|rec|recon|cls|reg|cyc|cycle|idt|identity|codebook|vq|tv|ssim|fft|freq|edge|mask)(?![a-z]))"
)
"""A loss as written in papers: L_kl, L_rec; in lower case only before what losses are called: l_pix, l_g_gan."""
_GLUED = re.compile(
    r"^(train|training|val|valid|validation|eval|test|avg|mean|total)"
    r"(loss|acc|accuracy|error|err|ppl|perplexity|wer|cer|bleu|auc|f1|miou|iou|map|mse|mae|rmse|dice|psnr|ssim)$"
)
_LOST = re.compile(r"^(?!(?:log|mlog|multilog|stop|f|p)loss)([a-z]{1,8})(loss)$")
"""A part of a loss: genloss, bboxloss."""
_PAIRS = {
    ("cross", "entropy"): "xent",
    ("learning", "rate"): "lr",
    ("learn", "rate"): "lr",
    ("log", "loss"): "logloss",
    ("word", "error"): "wer",
    ("character", "error"): "cer",
    ("average", "precision"): "map",
    ("r", "2"): "r2",
    ("loss", "value"): "loss",
    ("loss", "val"): "loss",
    ("g", "norm"): "gnorm",
    ("l", "r"): "lr",
    ("smooth", "l1"): "smoothl1",
    ("batch", "cost"): "dt",
    ("reader", "cost"): "runtime",
    ("data", "cost"): "runtime",
    ("time", "cost"): "runtime",
}
"""Pairs of words with a meaning of their own; "loss value" is a loss, "value loss" is another loss."""
LOSS = frozenset({"loss", "losses", "objective", "cost", "criterion", "perda", "perdida", "perte", "verlust"})
KINDS = frozenset({"nll", "nloglik", "ce", "bce", "xent", "logloss", "mlogloss", "elbo"})
"""Losses by their own names; they are parts if something else is called the loss."""
OBJECTIVES = frozenset(
    tuple(name.split("-"))
    for name in listed(
        "multi-class multi-class-one-vs-all quantile log-lin-quantile expectile poisson tweedie huber lq cox "
        "query-soft-max pair-logit pair-logit-pairwise xent-lambda kullback-leibler gamma-deviance l1 l2 mphe"
    )
)
"""What CatBoost, LightGBM and XGBoost call losses, by all their words; used if nothing else is a loss."""
_SETTING = re.compile(r":\w+=[\d.]+(?:;\w+=[\d.]+)*$")
"""A suffix that CatBoost adds to a name: Quantile:alpha=0.9."""
FILLERS = listed(
    "step epoch avg average mean global running batch batches iter iteration current cur the of per log logs logged "
    "metrics metric scalar scalars stats stat set data split overall micro macro info raw meter reduced sync synced "
    "dist all total tot sum full final lm main monitor model performance on rate train"
)
"""Words that say how something was gathered, not what it is."""
TOTAL = frozenset({"total", "tot", "sum", "overall", "full", "main"})
SMOOTHED = frozenset({"smooth", "smoothed", "ema", "running", "epoch", "median", "avg", "average", "mean"})
AVERAGED = SMOOTHED - FILLERS
"""Words of smoothed losses, whose spikes are lower and later."""
ODD = listed(
    "min max std var best last count num n scale scaler weight weights ratio delta coef coefficient lambda "
    "ppl perplexity acc accuracy per_token improvement target threshold nan diff stdev improved from previous "
    "prev skipped improve improving with saved"
)
"""Words that turn a loss into something else."""
HIGHER = listed(
    "acc accu accuracy acuracia exactitud akurasi f1 auc auroc roc ap map precision recall specificity "
    "sensitivity iou miou jaccard dice bleu rouge chrf meteor cider spice psnr ssim r2 kappa mcc matthews ndcg "
    "mrr hits em exact success correct prec spearman pearson correlation top1 top5 top fmeasure pesq stoi hit "
    "recall1 recall5 balanced aucpr auprc prauc"
)
LOWER = listed(
    "wer cer ter error err errors merror ppl perplexity mse rmse mae mape smape msle rmsle fid kid lpips bpb bpc bpd "
    "eer epe hausdorff nme ade fde absrel sqrel "
    "brier"
)
FALLBACK = listed("ppl perplexity mse rmse mae bpb bpc bpd error err merror mape msle rmsle")
"""Metrics that replace a loss if none is logged."""
EVALUATED = listed(
    "wer cer bleu rouge chrf meteor cider map miou fid kid psnr ssim lpips ndcg mrr pesq hit hits "
    "recall1 recall5 recall10 ap"
)
"""Metrics that nobody computes on training batches: validation metrics even if the name does not say so."""
REWARD = frozenset({"reward", "rewards", "rew", "return", "returns", "episodic"})
SCORES = frozenset({"score", "scores"})
"""What a game calls its reward, in a log that counts `EPISODES` or logs how often the agent explores."""
EPISODES = frozenset({"episode", "episodes", "epsilon", "exploration"})
SYNONYMS = {
    "acc": "accuracy",
    "accu": "accuracy",
    **dict.fromkeys(("acuracia", "exactitud", "akurasi"), "accuracy"),
    "prec": "precision",
    "perplexity": "ppl",
    "err": "error",
    "errors": "error",
}


@dataclass(frozen=True)
class Name:
    """A name, split into words."""

    original: str
    words: tuple[str, ...]
    """In lower case, without those that name the split."""
    split: Split
    count: int
    """How many points were logged under it."""

    @property
    def rest(self) -> tuple[str, ...]:
        """The words that say which part of a loss this is."""
        return tuple(word for word in self.words if word not in FILLERS and base(word) not in LOSS)

    def has(self, words: Iterable[str]) -> bool:
        """Whether one of these words is in it, with or without a number after it."""
        wanted = frozenset(words)
        return any(word in wanted or base(word) in wanted for word in self.words)

    @property
    def is_loss(self) -> bool:
        """Whether it is the loss or a part of it."""
        return self.has(LOSS | KINDS) and not self.has(ODD)

    @property
    def is_objective(self) -> bool:
        """Whether it is a loss in a library for boosted trees."""
        plain = words_of(_SETTING.sub("", self.original)) if "=" in self.original else self.words
        return tuple(word for word in plain if word not in SPLITS and not word.isdigit()) in OBJECTIVES

    @property
    def is_record(self) -> bool:
        """Whether it is a loss at which a model was saved: "saved at epoch 3 with loss 0.12"."""
        return self.has(LOSS) and self.has({"with", "saved"}) and not self.has(ODD - {"with", "saved", "best"})


def base(word: str) -> str:
    """A word without the number at its end.

    >>> base("map50"), base("95")
    ('map', '95')
    """
    return word.rstrip("0123456789") or word


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name in lower case; words often written together are separated.

    >>> words_of("train/box_loss"), words_of("valLoss"), words_of("lr-AdamW/pg1"), words_of("metrics/mAP50-95(B)")
    (('train', 'box', 'loss'), ('val', 'loss'), ('lr', 'adam', 'w', 'pg1'), ('metrics', 'map50', '95', 'b'))
    """
    for together, apart in _WRITTEN_TOGETHER:
        name = name.replace(together, apart)
    if not name.isascii():  # validação
        name = "".join(letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
    name = _LETTER.sub("loss_", name)
    if "@" in name or "_to_" in name:
        name = _RECALL.sub(" recall", name)
    found: list[str] = []
    for word in _WORDS.findall(name):
        glued = _GLUED.match(word.lower()) or _LOST.match(word.lower())
        for part in glued.groups() if glued else (word.lower(),):
            pair = _PAIRS.get((found[-1], part)) if found else None
            if pair is not None:
                found[-1] = pair
            else:
                found.append(part)
    return tuple(found)


@lru_cache(maxsize=4096)
def taken_apart(name: str, count: int) -> Name:
    """A name's words, and its split: the last one named.

    Next to another split, *training* describes the kind of loss.

    >>> taken_apart("val training loss", 5).split, taken_apart("eval/train_loss", 5).split
    ('val', 'train')
    """
    words = words_of(name)
    named = [word for word in words if word in SPLITS]
    splits = [SPLITS[word] for word in named if word != "training"] or [SPLITS[word] for word in named]
    split: Split = SPLITS.get(name.rpartition("/")[2].lower()) or (splits[-1] if splits else "")
    rest = tuple(word for word in words if word not in SPLITS)
    if not split and words[:1] == ("metrics",) and "/" in name:  # Ultralytics: the validation set
        split = "val"
    return Name(name, rest, split, count)


def is_measure(name: str) -> bool:
    """Whether a name stands for a loss or a metric."""
    part = taken_apart(name, 0)
    return part.is_loss or part.is_objective or part.has(HIGHER | LOWER)
