"""The page that people read: targets, every figure, the method, the machine. Measures nothing."""

from collections.abc import Iterable
from pathlib import Path

from bench import plot
from bench.cases import GROUPS
from bench.ledger import HEADRACE, KAFKA, METRICS, Case, Ledger
from bench.quantity import times, with_spread
from bench.targets import TARGETS, Target, target_for

_METHOD = """\
- Both brokers run on this one machine, one node each, on free loopback ports and fresh data directories:
  Apache Kafka as a KRaft node with the distribution's settings and JVM options (`-Xmx1G`), headrace as
  `headrace start` with its defaults.
- **In turn.** For the cases on running brokers both are up and warm, and the same client loads one, then the
  other; who goes first changes every round. The other cases start one broker at a time. Dirty pages are
  written out before every sample.
- **Ratios** are headrace ÷ Kafka, formed within each round; given are the median over the rounds and, in
  brackets, the lowest and the highest. The machine's speed drifts, so single figures do, and ratios do less.
- **CPU** is what the kernel counts for all threads and children of the broker (`/proc/<pid>/stat`). It is the
  steadiest figure here: messages/s with large batches is bounded by the client, which shares the cores.
- **Clients.** `bench/load.c` on librdkafka (not idempotent, no compression), `bench/connections.c`,
  `bench/members.c` and `bench/offsets.c` on bare sockets, and Kafka's own ProducerPerformance and
  ConsumerPerformance. Topics have one replica, except in the cases on clusters.
- **Clusters.** Three nodes of each, all six up at once on this one machine: Kafka's are broker and controller in one,
  headrace's have an etcd member beside them, so that both lose a voter with a node. Topics have three replicas and
  `min.insync.replicas=2`. CPU and memory are of all three nodes together, etcd included. The longest time between two
  acks is what an idempotent producer with librdkafka's defaults sees while its leader is killed with its whole node,
  or while one node after the other is stopped and started; each node is in sync again before the next one stops.
- **Groups.** Every member has a connection of its own. The brokers have answered commits before, until a JVM has
  compiled them. A rebalance is over when every member has its share of the same generation.
- **Latency** is taken from the call of the client's produce function to the client's callback (ack), or to
  the return from the consumer's poll (consume), of every record after the first tenth.
- **Start to first ack** begins at the spawn of the broker's process, with a producer already knocking at the
  port every millisecond; the first record also creates its topic.
- **REST** is measured with `wrk` on a gateway beside a broker of its own, as `headrace start` runs them. The empty
  handler is FastAPI's, on the same server with the same limits; both are loaded in turn.
- **Loop lag** is the lateness of a 5 ms timer in headrace's event loop, the machine's share included.
"""


def write(ledger: Ledger, page: Path) -> None:
    """The page and, beside it, its two plots."""
    page.parent.mkdir(parents=True, exist_ok=True)
    ratios, scaling = page.with_suffix(".svg"), page.with_name(f"{page.stem}-scaling.svg")
    ratios.write_text(plot.ratios(ledger))
    scaling.write_text(plot.scaling(ledger))
    sections = [
        "# Performance\n\nheadrace and Apache Kafka, measured in one run by the same clients. "
        "Written by `make bench`; do not edit by hand.",
        f"![headrace relative to Apache Kafka]({ratios.name})",
        "## Targets\n\n" + _target_table(ledger),
        *_group_sections(ledger),
        f"## How cost grows\n\n![cost against partitions, connections and log size]({scaling.name})",
        *_not_measured(ledger),
        "## How it was measured\n\n" + _METHOD.rstrip(),
        "## The machine\n\n" + _table(("", ""), ledger.facts.items()),
    ]
    page.write_text("\n\n".join(sections) + "\n")


def summary(ledger: Ledger) -> str:
    """The targets as plain lines for a terminal."""
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


def _group_sections(ledger: Ledger) -> Iterable[str]:
    for group in GROUPS:
        cases = [case for case in ledger.cases.values() if case.group == group.name]
        rows = [row for case in cases for row in _case_rows(case, ledger)]
        if rows:
            head = ("case", "measure", "Apache Kafka", "headrace", "ratio", "target", "met")
            yield f"## {group.title}\n\n" + _conditions(cases) + "\n\n" + _table(head, rows)


def _conditions(cases: list[Case]) -> str:
    return "\n".join(f"- `{case.id}`: {case.title}; {case.conditions}." for case in cases)


def _case_rows(case: Case, ledger: Ledger) -> Iterable[tuple[str, ...]]:
    for metric in ledger.metrics(case.id):
        kafka, ours = (with_spread(metric, ledger.spread(case.id, metric, broker)) for broker in (KAFKA, HEADRACE))
        target = target_for(case.id, metric)
        end = (str(target), _bold_verdict(target, ledger)) if target else ("", "")
        yield (f"`{case.id}`", METRICS[metric].label, kafka, ours, times(ledger.ratio(case.id, metric)), *end)


def _not_measured(ledger: Ledger) -> Iterable[str]:
    rows = [
        (f"`{case_id}`", broker, " ".join(reason.split())[:300].replace("|", "\\|"))
        for kind in (ledger.failures, ledger.skips)
        for case_id, brokers in kind.items()
        for broker, reason in brokers.items()
    ]
    if rows:
        yield "## Not measured\n\n" + _table(("case", "broker", "why"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
