"""
The cost and progress of a store's runs, as metrics: https://prometheus.io/docs/specs/om/open_metrics_spec.

The figures are the same as in `spotrun report --json`. The names and labels of metrics do not change from version to
version, because dashboards use them.

A metric is a counter only if its value can never decrease. A figure that may be corrected later is a gauge. An example
is the cost, which is corrected when the end of an instance becomes known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.registry import Collector

from spotrun.account.outcome import STATES, status_word
from spotrun.account.prices import Rented, rented
from spotrun.account.summary import summarise
from spotrun.folder.final_status import run_status
from spotrun.folder.machine_use import TypeUse
from spotrun.report.machine_use import whole_report
from spotrun.report.tables import plain
from spotrun.run.state import RunState
from spotrun.version import __version__


class Figures(NamedTuple):
    """
    The figures of a run that its metrics need: `report` as in `spotrun report --json`, and `state` and `step` as in
    `spotrun status --json`.
    """

    run: str
    name: str
    cloud: str
    simulated: bool
    started_at: datetime
    budget_usd: Decimal | None
    state: str
    step: int
    rented: Sequence[Rented]
    report: Mapping[str, Any]


def figures_of(state: RunState, now: datetime, machines: Iterable[TypeUse]) -> Figures:
    created, summary = state.created, summarise(state, now)
    return Figures(
        run=plain(summary.run),
        name=plain(summary.name),
        cloud=plain(str(created.job("resources").get("cloud", ""))),
        simulated=created.simulated,
        started_at=summary.started_at,
        budget_usd=created.budget_usd,
        state=status_word(state),
        step=run_status(state, summary, now).step,
        rented=rented(state),
        report=whole_report(summary, machines),
    )


class Reading(NamedTuple):
    """
    One reading of a store at the time `at`. It took `took_s` of system time.

    `unreadable` maps the name of a run's folder to the reason why the run could not be read. `late` counts the runs
    that were not read in time: their figures are from an earlier reading, or missing. Only the newest runs are
    read; `left_out` counts the older ones. `reachable` is True if the store answered this reading.
    """

    runs: Sequence[Figures]
    unreadable: Mapping[str, str]
    late: int
    left_out: int
    at: datetime
    took_s: float
    reachable: bool = True


def open_metrics(reading: Reading) -> str:
    written: bytes = generate_open_metrics(_ReadingCollector(reading))  # type: ignore[no-untyped-call]
    return written.decode()


def prometheus_text(reading: Reading) -> str:
    """Return the metrics in the older Prometheus format, which node_exporter's textfile collector reads."""
    return generate_latest(_ReadingCollector(reading)).decode()


class _ReadingCollector(Collector):
    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> Iterable[Metric]:
        return families(self._reading)


def families(reading: Reading) -> Iterator[Metric]:
    """Yield each metric, with a sample for each run that has a value for it."""
    info = InfoMetricFamily("spotrun_run", "Facts about a run.", labels=OF_RUN)
    states = StateSetMetricFamily("spotrun_run_state", "The current state of a run.", labels=OF_RUN)
    for run in reading.runs:
        scale = f"{run.report['time_scale']:g}"
        told = {"name": run.name, "simulated": str(run.simulated).lower(), "time_scale": scale}
        info.add_metric([run.run, run.cloud], told)
        states.add_metric([run.run, run.cloud], {state: run.state == state for state in STATES})
    yield from (info, states)
    for figure in FIGURES:
        yield _family(figure, reading.runs)
    yield from _of_reading(reading)


OF_RUN = ("run", "cloud")
Values = Iterable[tuple[tuple[str, ...], object]]
"""
The values of one metric in one run. Each item is a pair: the values of the metric's own labels, and then the metric's
value. The value is None if the run does not have it yet.
"""


class Figure(NamedTuple):
    """
    A metric of a run. The metric's name ends with its unit. `labels` are this metric's own labels; in addition, it has
    the labels that all metrics of a run have.
    """

    kind: type[GaugeMetricFamily | CounterMetricFamily]
    name: str
    unit: str
    what: str
    values: Callable[[Figures], Values]
    labels: tuple[str, ...] = ()


def _family(figure: Figure, runs: Iterable[Figures]) -> Metric:
    family = figure.kind(f"spotrun_run_{figure.name}", figure.what, labels=OF_RUN + figure.labels, unit=figure.unit)
    for run in runs:
        for more, value in figure.values(run):
            if value is not None:
                family.add_metric([run.run, run.cloud, *more], float(str(value)))
    return family


def _total(key: str) -> Callable[[Figures], Values]:
    return lambda run: [((), run.report["total"][key])]


def _parts(**keys: str) -> Callable[[Figures], Values]:
    """
    Return a function that reads several totals from a run's report. `keys` maps each value of the metric's label to the
    name of a total in the report.
    """
    return lambda run: [((label,), run.report["total"][key]) for label, key in keys.items()]


def _started(run: Figures) -> Values:
    return [((), run.started_at.timestamp())]


def _downtime(run: Figures) -> Values:
    return [((kind,), seconds) for kind, seconds in run.report["total"]["downtime_s"].items()]


def _rented(key: str) -> Callable[[Figures], Values]:
    return lambda run: [((plain(one.instance_type), one.capacity_type), getattr(one, key)) for one in run.rented]


def _used(key: str) -> Callable[[Figures], Values]:
    return lambda run: [((one["instance_type"],), one[key]) for one in run.report["machines"]]


G, C = GaugeMetricFamily, CounterMetricFamily
KINDS_OF_COST = {kind: f"{kind}_usd" for kind in ("spot", "on_demand", "storage", "requests", "egress")}
OF_TYPE = ("instance_type",)
OF_INSTANCES = ("instance_type", "capacity_type")
FIGURES = (
    Figure(
        G, "started_timestamp", "seconds", "Time of a run's creation.", lambda run: [((), run.started_at.timestamp())]
    ),
    Figure(G, "cost", "usd", "Cost of a run so far, by kind.", _parts(**KINDS_OF_COST), ("kind",)),
    Figure(G, "all_on_demand", "usd", "Cost of the same training on demand.", _total("counterfactual_usd")),
    Figure(G, "budget", "usd", "Maximum cost of a run.", lambda run: [((), run.budget_usd)]),
    Figure(
        G,
        "price",
        "usd_per_hour",
        "Current price per hour of all these instances together.",
        _rented("usd_per_hour"),
        OF_INSTANCES,
    ),
    Figure(G, "instances", "", "Instances that are billed now.", _rented("instances"), OF_INSTANCES),
    Figure(C, "interruptions", "", "Losses of a run's instances to the cloud.", _total("interruptions")),
    Figure(C, "steps_redone", "", "Steps that were trained again after a loss.", _total("steps_redone")),
    Figure(G, "steps", "", "The step of the newest checkpoint.", lambda run: [((), run.step)]),
    Figure(G, "epochs", "", "Completed epochs.", lambda run: [((), len(run.report["epochs"]))]),
    Figure(G, "productive", "seconds", "Time of training whose result is kept.", _total("productive_s")),
    Figure(G, "downtime", "seconds", "Time without productive training, by kind.", _downtime, ("kind",)),
    Figure(G, "paid", "seconds", "Billed time of all instances.", _total("paid_s")),
    Figure(G, "goodput", "ratio", "Productive over paid time.", _total("goodput")),
    Figure(G, "savings", "ratio", "Share of the on-demand bill that was not paid.", _total("savings")),
    Figure(G, "cpu_busy", "ratio", "Busy share of processors during training.", _used("cpu_busy"), OF_TYPE),
    Figure(G, "memory_used", "ratio", "Share of the memory that was used.", _used("memory_used"), OF_TYPE),
    Figure(G, "gpu_busy", "ratio", "Busy share of GPUs during training.", _used("gpu_busy"), OF_TYPE),
    Figure(G, "gpu_memory_used", "ratio", "Share of the GPU memory that was used.", _used("gpu_memory_used"), OF_TYPE),
    Figure(G, "data_wait", "ratio", "Share of training that waited for its data.", _used("data_wait"), OF_TYPE),
)


def _of_reading(reading: Reading) -> Iterator[Metric]:
    build = InfoMetricFamily("spotrun_build", "The version of spotrun that read the store.")
    build.add_metric([], {"version": __version__})
    runs = GaugeMetricFamily("spotrun_runs", "Number of runs in this state.", labels=["state"])
    count = Counter(run.state for run in reading.runs)
    for state in STATES:
        runs.add_metric([state], count[state])
    unreadable = GaugeMetricFamily("spotrun_run_unreadable", "1 for a run that cannot be read.", labels=["run"])
    for name in reading.unreadable:
        unreadable.add_metric([plain(name)], 1)
    yield from (build, runs, unreadable)
    for name, what, unit, value in (
        ("store_reachable", "1 if the store has answered.", "", int(reading.reachable)),
        ("runs_late", "Runs that were not read in time, so that figures are old or missing.", "", reading.late),
        ("runs_left_out", "Older runs that were not read (see --last).", "", reading.left_out),
        ("read", "Time at which the store was read.", "timestamp_seconds", reading.at.timestamp()),
        ("read_duration", "Time that it took to read the store.", "seconds", reading.took_s),
    ):
        yield GaugeMetricFamily(f"spotrun_{name}", what, value=value, unit=unit)
