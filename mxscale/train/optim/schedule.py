"""The learning rate and blends as pure functions of the step.  No framework: numbers in, a number out."""

import math
from functools import partial
from typing import Callable

from mxscale.config.schema import Config
from mxscale.config.sizes import Sizes


def learning_rate(config: Config, sizes: Sizes) -> Callable[[int], float]:
    """`step -> lr`, step 0 being the first update.

    Warm-up rises linearly, step by step, from the unscaled lr to the effective lr (arXiv:1706.02677,
    sec. 2.2); the main schedule counts its epochs from the start of training, warm-up included, as
    that paper's "divided by 10 at the 30th, 60th and 80th epoch" does.
    """
    schedule = config.schedule
    scaling = sizes.effective_lr / config.optimizer.lr if config.optimizer.lr else 1.0
    planned = config.epochs * sizes.steps_per_epoch  # max_steps ends a run early, it does not shorten its schedule
    warmup_steps = round(schedule.warmup_epochs * sizes.steps_per_epoch)
    start = config.optimizer.lr if schedule.warmup_lr is None else schedule.warmup_lr
    end_of_decay = schedule.final_lr * scaling

    def main(step: int) -> float:
        lr = sizes.effective_lr
        if schedule.kind == "constant":
            return lr
        if schedule.kind == "step" and schedule.factors:
            return phased(step / sizes.steps_per_epoch, lr, schedule.milestones, schedule.factors)
        if schedule.kind == "step":
            return stepwise(step / sizes.steps_per_epoch, lr, schedule.milestones, schedule.factor)
        decay = {"cosine": cosine, "poly": partial(poly, power=schedule.power)}[schedule.kind]
        return decay(progress(step, warmup_steps, planned), lr, end_of_decay)

    def at(step: int) -> float:
        if step < warmup_steps:
            return warmup(step, warmup_steps, start, sizes.effective_lr)
        return main(step)

    return at


class ByUpdates:
    """The same for an optimizer on a parameter server, which counts its updates from 1, `updates` of them a step.

    Of several each moves the weights by its share.  Made of values alone: it travels pickled.
    """

    def __init__(self, config: Config, sizes: Sizes, updates: int = 1):
        self.config, self.sizes, self.updates = config, sizes, updates

    def __call__(self, count: int) -> float:
        return learning_rate(self.config, self.sizes)((count - 1) // self.updates) / self.updates


def warmup(step: int, steps: int, start: float, end: float) -> float:
    """Linear from `start` at step 0 to `end` at step `steps`."""
    return start + (end - start) * step / steps


def progress(step: int, first: int, last: int) -> float:
    """Share of the way from `first` to `last`, in 0..1."""
    return min(max((step - first) / max(last - first, 1), 0.0), 1.0)


def stepwise(epoch: float, lr: float, milestones, factor: float) -> float:
    """`lr` times `factor` for each milestone passed."""
    return lr * factor ** sum(epoch >= milestone for milestone in milestones)


def phased(epoch: float, lr: float, milestones, factors) -> float:
    """`lr` times the first of `factors` until the first milestone, times the second from there on, and so forth."""
    return lr * factors[sum(epoch >= milestone for milestone in milestones)]


def cosine(share: float, lr: float, final: float) -> float:
    """Half a cosine from `lr` to `final` (arXiv:1608.03983, eq. 5, one cycle)."""
    return final + (lr - final) * (1 + math.cos(math.pi * share)) / 2


def poly(share: float, lr: float, final: float, power: float) -> float:
    """`(1 - share)^power` from `lr` to `final`."""
    return final + (lr - final) * (1 - share) ** power


def sgd_share(epoch: float, center: float, period: float) -> float:
    """a_SGD of RMSprop warm-up: the share of SGD in a step, the rest being RMSprop's (arXiv:1711.04325, sec. 2).

    An exponential up to a half at `center`, from there a line up to 1 half a `period` later.  Where they meet both have
    the slope 1 / period: a line of twice that slope, as in public ports of it, would end at 1.5 and jump back to 1.
    """
    x = (epoch - center) / period
    if x < 0:
        return math.exp(2 * x) / 2
    return min(0.5 + x, 1.0)
