"""`budget.dry_run=true`: prepare data, network and weights, and print what the run is and takes.

No rank is started, and nothing of the run is left behind.
"""

from mxscale.config.schema import Config
from mxscale.cost import prices
from mxscale.data import manifest
from mxscale.launcher import setup
from mxscale.launcher.context import Resources, RunContext, Signals
from mxscale.records.summary import money
from mxscale.rundir import directory, guards
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import DONE, INTERRUPTED, Status
from mxscale.util.terminal import echo


def execute(config: Config, resources: Resources) -> Status:
    """Prepare a new run, print its size, time and cost, and return the status. Raises ConfigError."""
    run = directory.create(config)
    with guards.locked(run), Signals() as signals, guards.undone_if_refused(run, config, new=True):
        context = setup.prepared(setup.begin_attempt(RunContext(run, config, resources, signals)))
        if not signals.reason:
            plan = run.plan()
            if plan.data_dir:
                echo(f"images    {manifest.summary(manifest.load(plan.data_dir), context.config.data)}")
            echo(estimate(context.config, plan, resources.price))
        guards.discard(run)
    return Status(state="DRY_RUN", exit=INTERRUPTED if signals.reason else DONE)


def estimate(config: Config, plan: Plan, price: Price) -> str:
    """Return the lines on time and cost of the training at the rate of budget.images_per_s, without validations."""
    rate = config.budget.images_per_s
    if config.epochs == "auto":
        return f"time      {config.budget.stated}: the epochs are fitted to it when the training starts"
    if rate is None:
        return "time      unknown: give budget.images_per_s=N, the rate that a run of some steps prints"
    seconds = plan.sizes.total_steps * plan.sizes.global_batch / rate
    setup_s = 60 * config.launch.setup_minutes
    hours = (setup_s + seconds) / 3600
    whole = f"{hours:.4g} h" if hours >= 1 else f"{60 * hours:.1f} min"
    lines = [f"time      {whole} (set-up {setup_s:,.0f} s, training {seconds:,.0f} s)"]
    total = prices.cost(price, seconds)
    if total is None:
        return "\n".join([*lines, f"cost      unknown: {price.why}"])
    billed = prices.billed(price, setup_s + seconds, total)
    lines += [f"billed    {billed}"] if billed else []
    lines.append(f"cost      {money(total)}")
    for currency, bound in config.budget.bounds.items():
        exceeded = total[currency] > bound
        lines.append(f"budget    budget.max_{currency}={bound:g} is {'exceeded' if exceeded else 'enough'}")
    return "\n".join(lines)
