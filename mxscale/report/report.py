"""`mxscale report`: select and write the requested report."""

from pathlib import Path
from typing import List, Optional

from mxscale.config.schema import Config
from mxscale.config.verb_settings import Report
from mxscale.records import claims as published
from mxscale.records.recorded import Recorded
from mxscale.rendering import page
from mxscale.report import claims, experiment
from mxscale.tracking import uris
from mxscale.tracking.history import Store
from mxscale.util.terminal import echo


def main(config: Config, request: Report) -> None:
    """Write the requested report. Raises ConfigError."""
    page.check_installed("mxscale report")
    ACTIONS[request.action](config, request, Path(request.output))


def report(config: Config, request: Report, folder: Path) -> None:
    """Report an experiment."""
    name = request.experiment or config.tracking.experiment
    store = Store(config)
    text = experiment.write(store.runs(store.experiment(name)), name, str(store), folder)
    echo(f"{text}\n  view            {folder}/report.html")


def report_claims(config: Config, request: Report, folder: Path) -> None:
    """Write the page of published works, and the results that runs of the store add to those of the tables."""
    runs = runs_of_claims(config, request.experiment)
    outcomes = published.outcomes(runs, published.modelled(), published.small_trials(runs), published.committed())
    texts = {"published-works.md": claims.in_markdown(outcomes)}
    if any(figure.runs for claim in outcomes for figure in claim.figures.values()):
        texts["measured_claims.csv"] = claims.measurements(outcomes)
    page.save(texts, (), folder, "report.output")
    echo(f"{claims.in_text(outcomes)}\n\n{claims.counts(outcomes)}. {claims.verdicts(outcomes)}")
    echo(f"  view            {folder}/published-works.md")


def runs_of_claims(config: Config, name: Optional[str]) -> List[Recorded]:
    """Return the runs with claims and those of replays, of one experiment or of all; [] if no store exists."""
    file = uris.sqlite_file(uris.store_uri(config.tracking, config.runs))
    if file and not file.exists() and not (name or config.tracking.uri):
        return []
    store = Store(config)
    experiment = store.experiment(name) if name else None
    tagged = [run for tag in ("claims", published.TAG) for run in store.runs(experiment, having=f"tags.{tag} != ''")]
    return list({run.id: run for run in tagged}.values())


ACTIONS = {"report": report, "claims": report_claims}
