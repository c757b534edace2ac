"""Command line of the benchmark against Apache Kafka.

python -m bench                            all cases; writes docs/performance.md, -growth.md and their plots
python -m bench --quick                    small counts, one round: checks that all cases work
python -m bench --only produce --repeat 9  one group of cases
python -m bench --render A.json B.json     writes the pages from stored results; later files take precedence
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench import report, tools
from bench.brokers import Broker
from bench.cases import GROUPS
from bench.headrace_node import Headrace
from bench.kafka import Kafka
from bench.ledger import COMMAND, Ledger
from bench.machine import command_line, facts
from bench.plan import FULL, QUICK, Plan
from bench.processes import BenchError, Processes
from bench.progress import progress
from bench.runner import Bench, Group

RESULTS = tools.CACHE / "bench"
PAGE = tools.ROOT / "docs" / "performance.md"
_KINDS: dict[str, type[Broker]] = {"kafka": Kafka, "headrace": Headrace}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measures headrace and Apache Kafka alternately with the same clients."
    )
    names = [group.name for group in GROUPS]
    parser.add_argument(
        "--quick", action="store_true", help="small counts: checks that all cases work; the results mean nothing"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"group of cases: {', '.join(names)}; repeatable (default: all)",
    )
    parser.add_argument(
        "--repeat", type=int, metavar="N", help="rounds (default 5, quick: 1); long cases run half as many"
    )
    parser.add_argument("--broker", choices=list(_KINDS), help="measure only this broker, without ratios")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="page (default docs/performance.md; partial and quick runs: .cache/bench); -growth.md is next to it",
    )
    parser.add_argument("--render", type=Path, nargs="+", metavar="JSON", help="write the pages from stored results")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a terminated benchmark stops its brokers
    if arguments.render:
        runs = [Ledger.load(path) for path in arguments.render]
    else:
        try:
            runs = [_measured(arguments)]
        except BenchError as failed:
            print(f"bench: {failed}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("bench: interrupted; all processes were stopped", file=sys.stderr)
            return 130
    whole = bool(arguments.render) or not (arguments.quick or arguments.only or arguments.broker)
    page = arguments.out or (PAGE if whole else RESULTS / "performance.md")
    ledger = write_pages(runs, page)
    print(report.summary(ledger))
    return 1 if ledger.failures else 0


def write_pages(runs: list[Ledger], page: Path) -> Ledger:
    """Writes both pages, that of growing costs only if a run measured them. Returns the merged ledger."""
    grown = [run for run in runs if report.has_growth(run)]
    if grown:
        # The page describes the host of the runs that measured these cases, which may not be the last ones.
        report.write_growth(Ledger.of(grown), page)
        print(f"written: {report.growth_page(page)}")
    ledger = Ledger.of(runs)
    report.write(ledger, page)
    print(f"written: {page}")
    return ledger


def _measured(arguments: argparse.Namespace) -> Ledger:
    kinds = (_KINDS[arguments.broker],) if arguments.broker else tuple(_KINDS.values())
    repeat = arguments.repeat or (1 if arguments.quick else 5)
    plan = Plan(kinds, QUICK if arguments.quick else FULL, repeat)
    groups = [group for group in GROUPS if not arguments.only or group.name in arguments.only]
    _make_ready(with_java=Kafka in kinds or any(group.name == "java" for group in groups))
    work = Path(tempfile.mkdtemp(prefix="work-", dir=RESULTS))
    try:
        ledger = Ledger(facts=facts(work, repeat=repeat, scale="quick" if arguments.quick else "full"))
        ledger.facts[COMMAND] = command_line()
        _run(plan, groups, work, ledger)
        return ledger
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(plan: Plan, groups: list[Group], work: Path, ledger: Ledger) -> None:
    stored = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    total = sum(group.samples(plan) for group in groups)
    with Processes() as processes, progress(total) as shown:
        bench = Bench(plan, work=work, processes=processes, ledger=ledger, progress=shown)
        # Stored after each group, so that an interrupted run keeps its results.
        bench.run(groups, after_each=lambda: ledger.save(stored))
        shown.say(f"results: {stored}")


def _make_ready(*, with_java: bool) -> None:
    tools.install_missing(with_java=with_java)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in tools.PROGRAMS:
        tools.program(name)
    if with_java:
        tools.kafka_classpath()


if __name__ == "__main__":
    sys.exit(main())
