"""What a run says of itself before anything is spent: sizes, what they are of, the price."""

from mxscale.config.schema import Config
from mxscale.config.sizes import server_count, unsaved
from mxscale.cost import prices
from mxscale.launcher import backend_probe
from mxscale.launcher.progress import say
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan


def announce(run: RunDir, config: Config, plan: Plan, price: dict) -> None:
    """Print it.  price: price.json."""
    s = plan.sizes
    skipped = f"; {plan.skipped} bad images skipped" if plan.skipped else ""
    source = f" from {config.model.pretrained}" if config.model.pretrained else ""
    revision = plan.origin and plan.origin.revision
    source += f" ({revision})" if revision else ""
    dropped = s.dropped_per_epoch
    rest = f", the last {dropped} images of an epoch's order are dropped" if dropped else ""
    where = f" on {', '.join(host.name for host in plan.hosts)}" if plan.hosts else ""
    lines = [
        f"run       {run.path}",
        f"data      {config.data.kind}: {s.train_images:,} training images, {plan.classes} classes{skipped}",
        f"model     {config.model.name}{source}",
        f"ranks     {s.ranks}{where} on {plan.device}, {s.shards} data shards",
        f"batch     {s.per_device_batch} per device, {s.global_batch} global; effective lr {s.effective_lr:g}",
        f"steps     {s.total_steps:,} ({s.steps_per_epoch:,} per epoch{rest})",
        f"price     {prices.describe(price) if price['known'] else 'unknown'}",
    ]
    if exchange := said_of_exchange(run, config, plan):
        lines.insert(4, f"exchange  {exchange}")
    taken = plan.input_taken
    if taken:
        values = ", ".join(f"{key} {value}" for key, value in taken.items())
        lines.insert(3, f"input     as the weights learnt it: {values} (model.input=config: as in data)")
    servers = server_count(config.comm, s.ranks)
    if servers:
        told = [f"{servers}, the update on the {config.comm.update_on}s"]
        told += [] if config.comm.entry.repeats(s.ranks) else [config.comm.entry.not_repeatable]
        lines.insert(-2, f"servers   {'; '.join(told)}")
    if lost := unsaved(config.comm):
        lines.insert(-2, f"resume    it can't be gone on with: {lost}")
    short = plan.short_shards
    if short:
        lines.insert(-2, f"shards    {short} of {s.shards} are short of an epoch's images and begin again")
    say("\n".join(lines))


def said_of_exchange(run: RunDir, config: Config, plan: Plan) -> str:
    """What is to be said of how gradients are exchanged."""
    comm, said = config.comm, []
    if comm.entry.drives_all_devices:
        said.append(f"kvstore {comm.backend}, one process")
        if plan.device == "cpu":
            said.append("over a CPU's contexts it is to learn and to test with")
    chosen = run.read(backend_probe.RECORD)
    if chosen:
        said.append(f"chosen by comm=auto ({chosen['reason']})")
    if comm.hierarchical and len(plan.hosts) < 2:
        said.append("comm.hierarchical has no effect on one machine")
    return "; ".join(said)
