"""The learning rate as a pure function of the step. No framework: numbers in, a number out."""

import math
from pkgutil import resolve_name
from typing import Callable, NamedTuple

from mxscale.config.optimizers import SCHEDULES
from mxscale.config.schema import Config, Schedule
from mxscale.config.sizes import Sizes


class Position(NamedTuple):
    """The arguments of a schedule after warm-up."""

    epoch: float  # epochs since the start of training, warm-up included
    progress: float  # share of the steps between warm-up and the end, 0..1
    lr: float  # the effective learning rate
    final_lr: float  # schedule.final_lr, scaled as the effective learning rate is


def learning_rate(config: Config, sizes: Sizes) -> Callable[[int], float]:
    """Return the function step -> learning rate; step 0 is the first update.

    Warm-up rises linearly at each step from the unscaled to the effective learning rate (arXiv:1706.02677, sec. 2.2). A
    batch below the reference has a lower effective rate: warm-up then stays at it and never exceeds it.
    Milestones count epochs from the start of training, warm-up included, as in that paper's "divided by 10 at the 30th,
    60th and 80th epoch". `max_steps` ends a run early and does not shorten its schedule.
    """
    schedule, lr = config.schedule, sizes.effective_lr
    scaling = lr / config.optimizer.lr if config.optimizer.lr else 1.0
    planned_steps = schedule.steps or config.epochs * sizes.steps_per_epoch
    warmup_steps = round(schedule.warmup_epochs * sizes.steps_per_epoch)
    start = min(config.optimizer.lr, lr) if schedule.warmup_lr is None else schedule.warmup_lr
    after_warmup = resolve_name(SCHEDULES[schedule.kind].function)

    def at(step: int) -> float:
        if step < warmup_steps:
            return start + (lr - start) * step / warmup_steps
        progress = min((step - warmup_steps) / max(planned_steps - warmup_steps, 1), 1.0)
        epoch = step / sizes.steps_per_epoch
        return after_warmup(Position(epoch, progress, lr, schedule.final_lr * scaling), schedule)

    return at


def constant(at: Position, settings: Schedule) -> float:
    return at.lr


def step(at: Position, settings: Schedule) -> float:
    """Multiply by `factor` at each milestone, or by one of `factors` in each interval between milestones."""
    passed = sum(at.epoch >= milestone for milestone in settings.milestones)
    return at.lr * (settings.factors[passed] if settings.factors else settings.factor**passed)


def cosine(at: Position, settings: Schedule) -> float:
    """Half a cosine from `lr` to `final_lr` (arXiv:1608.03983, eq. 5, one cycle)."""
    return at.final_lr + (at.lr - at.final_lr) * (1 + math.cos(math.pi * at.progress)) / 2


def poly(at: Position, settings: Schedule) -> float:
    """`(1 - progress)^power`, from `lr` to `final_lr`."""
    return at.final_lr + (at.lr - at.final_lr) * (1 - at.progress) ** settings.power


def sgd_share(epoch: float, center: float, period: float) -> float:
    """Return a_SGD of RMSprop warm-up: the share of SGD in a step, in 0..1 (arXiv:1711.04325, sec. 2).

    The share rises exponentially to 1/2 at `center`, then linearly to 1 half a `period` later (both in epochs). Both
    parts have the slope 1 / period at `center`. Some public ports have a line of twice that slope, which would end at
    1.5 and jump back to 1.
    """
    x = (epoch - center) / period
    if x < 0:
        return math.exp(2 * x) / 2
    return min(0.5 + x, 1.0)
