"""Writes the result pages: performance.md with targets and results, performance-growth.md with growing costs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import plot
from bench.cases import GROUPS
from bench.ledger import HEADRACE, KAFKA, METRICS, Case, Ledger
from bench.quantity import times, with_spread
from bench.targets import TARGETS, Target, target_for

_METHOD = """\
- Both brokers run on this host, one node each, on free loopback ports and with fresh data directories:
  Apache Kafka as a KRaft node with the distribution's settings and JVM options (`-Xmx1G`), headrace as
  `headrace start` with its defaults.
- **Order.** For cases with running brokers, both are running and warm, and the same client loads them alternately;
  the order changes every round. Other cases start one broker at a time. Dirty pages are written to disk before every
  sample.
- **Ratios** are headrace ÷ Kafka within each round. The tables have the median over the rounds and, in brackets, the
  minimum and the maximum. The speed of the host drifts, which affects single values more than ratios.
- **CPU** is the time that the kernel reports for all threads and children of the broker (`/proc/<pid>/stat`). It is the
  most stable value: messages/s with large batches is limited by the client, which shares the cores.
- **Clients.** `bench/load.c` on librdkafka (not idempotent, no compression), `bench/connections.c`,
  `bench/members.c` and `bench/offsets.c` on raw sockets, and Kafka's own ProducerPerformance and
  ConsumerPerformance. Topics have one replica, except in the cases with clusters.
- **Clusters.** Three nodes of each, all six running at once on this host: Kafka's are broker and controller in one
  process, headrace's have an etcd member each, so that both lose a voter with a node. Topics have three replicas and
  `min.insync.replicas=2`. CPU and memory are the sums of the three nodes, with etcd. The longest time between two acks
  is measured by an idempotent producer with librdkafka's defaults while its leader is killed with its whole node, or
  while the nodes are restarted one after the other; each node is in sync again before the next one stops.
- **Groups.** Every member has a connection of its own. The brokers have processed commits before the measurement, until
  a JVM has compiled that code. A rebalance ends when every member has its assignment of the same generation.
- **Latency** is measured from the call of the client's produce function to the client's callback (ack), or to
  the return from the consumer's poll (consume), for every record after the first tenth.
- **Start to first ack** begins when the broker's process is spawned, while a producer tries to connect every
  millisecond; the first record also creates its topic.
- **REST** is measured with `wrk` on a gateway with a broker of its own, as `headrace start` runs them. The empty
  handler is FastAPI's, on the same server with the same limits; both are loaded alternately.
  A Kafka producer beside REST, its broker, the gateway and `wrk` share all cores, as on a small host. The same load on
  an empty handler, which never reaches the broker, shows the host's part; a loop of appends and fdatasyncs without a
  broker, at the same rate beside REST, shows the disk's part.
- **Loop lag** is the delay of a 5 ms timer in headrace's event loop, including the host's part.
"""

# These groups have a page of their own, because they take longest and are seldom measured with the others.
GROWTH = ("partitions", "connections", "log-size", "java")


def write(ledger: Ledger, page: Path) -> None:
    """Writes the page of targets and results, and its plot next to it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    ratios, growth = page.with_suffix(".svg"), growth_page(page)
    ratios.write_text(plot.ratios(ledger))
    others = [group.name for group in GROUPS if group.name not in GROWTH]
    link = f"\n\nCost of more partitions, connections and data: [{growth.name}]({growth.name})."
    sections = [
        "# Performance\n\nheadrace and Apache Kafka, measured alternately by the same clients. "
        "Written by `make bench`; do not edit by hand." + (link if growth.exists() else ""),
        f"![headrace relative to Apache Kafka]({ratios.name})",
        "## Targets\n\n" + _target_table(ledger),
        *_group_sections(ledger, others),
        *_not_measured(ledger, others),
        "## How it was measured\n\n" + _METHOD.rstrip(),
        "## Host\n\n" + _table(("", ""), ledger.facts.items()),
    ]
    page.write_text("\n\n".join(sections) + "\n")


def growth_page(page: Path) -> Path:
    """Returns the path of the page of growing costs."""
    return page.with_name(f"{page.stem}-growth{page.suffix}")


def has_growth(ledger: Ledger) -> bool:
    return any(case.group in GROWTH for case in ledger.cases.values())


def write_growth(ledger: Ledger, page: Path) -> None:
    """Writes the page of growing costs and its plot."""
    assert has_growth(ledger), "an existing page is not replaced by an empty one"
    target = growth_page(page)
    target.parent.mkdir(parents=True, exist_ok=True)
    picture = target.with_suffix(".svg")
    picture.write_text(plot.scaling(ledger))
    measured = {case.group for case in ledger.cases.values()}
    missing = [f"`{name}`" for name in GROWTH if name not in measured]
    sections = [
        "# How cost grows\n\nAgainst partitions, connections and the size of the log, and by Kafka's own tools: "
        "headrace and Apache Kafka, measured alternately by the same clients. Written by `make bench`; do not edit by "
        f"hand. [The other page]({page.name}) describes the method. The host and the run of these results are "
        "described at the end, and may differ.",
        f"![cost against partitions, connections and log size]({picture.name})",
        *([f"Not in this run: {', '.join(missing)}."] if missing else []),
        *_group_sections(ledger, GROWTH),
        *_not_measured(ledger, GROWTH),
        "## Host\n\n" + _table(("", ""), ledger.facts.items()),
    ]
    target.write_text("\n\n".join(sections) + "\n")


def summary(ledger: Ledger) -> str:
    """Returns the targets as lines of text for a terminal."""
    lines = []
    for target in TARGETS:
        if target.measured(ledger) is not None:
            what = f"{target.case_id}: {METRICS[target.metric].label}"
            lines.append(f"  {_verdict(target, ledger):7} {what:75} {_measured(target, ledger)}, target {target}")
    return "\n".join(["headrace relative to Apache Kafka:", *lines])


def _measured(target: Target, ledger: Ledger) -> str:
    if target.is_ratio:
        return times(ledger.ratio(target.case_id, target.metric))
    return with_spread(target.metric, ledger.spread(target.case_id, target.metric, HEADRACE))


def _verdict(target: Target, ledger: Ledger) -> str:
    met = target.is_met(ledger)
    return "–" if met is None else "met" if met else "not met"


def _target_table(ledger: Ledger) -> str:
    rows = []
    for target in TARGETS:
        case = ledger.cases.get(target.case_id)
        what = f"{case.title if case else target.case_id}: {METRICS[target.metric].label}"
        conditions = case.conditions if case else "not measured in this run"
        kafka, ours = (
            with_spread(target.metric, ledger.spread(target.case_id, target.metric, broker))
            for broker in (KAFKA, HEADRACE)
        )
        ratio = times(ledger.ratio(target.case_id, target.metric))
        rows.append((what, conditions, kafka, ours, ratio, str(target), _bold_verdict(target, ledger)))
    return _table(("measure", "conditions", "Apache Kafka", "headrace", "ratio", "target", "met"), rows)


def _bold_verdict(target: Target, ledger: Ledger) -> str:
    verdict = _verdict(target, ledger)
    return f"**{verdict}**" if verdict == "not met" else verdict


def _group_sections(ledger: Ledger, names: Sequence[str]) -> Iterable[str]:
    titles = {group.name: group.title for group in GROUPS}
    for name in names:
        cases = [case for case in ledger.cases.values() if case.group == name]
        rows = [row for case in cases for row in _case_rows(case, ledger)]
        if rows:
            head = ("case", "measure", "Apache Kafka", "headrace", "ratio", "target", "met")
            yield f"## {titles[name]}\n\n" + _conditions(cases) + "\n\n" + _table(head, rows)


def _conditions(cases: list[Case]) -> str:
    return "\n".join(f"- `{case.id}`: {case.title}; {case.conditions}." for case in cases)


def _case_rows(case: Case, ledger: Ledger) -> Iterable[tuple[str, ...]]:
    for metric in ledger.metrics(case.id):
        kafka, ours = (with_spread(metric, ledger.spread(case.id, metric, broker)) for broker in (KAFKA, HEADRACE))
        target = target_for(case.id, metric)
        end = (str(target), _bold_verdict(target, ledger)) if target else ("", "")
        yield (f"`{case.id}`", METRICS[metric].label, kafka, ours, times(ledger.ratio(case.id, metric)), *end)


def _not_measured(ledger: Ledger, names: Sequence[str]) -> Iterable[str]:
    rows = [
        (f"`{case_id}`", broker, " ".join(reason.split())[:300].replace("|", "\\|"))
        for kind in (ledger.failures, ledger.skips)
        for case_id, brokers in kind.items()
        if ledger.cases[case_id].group in names
        for broker, reason in brokers.items()
    ]
    if rows:
        yield "## Not measured\n\n" + _table(("case", "broker", "reason"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
