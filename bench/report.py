"""The two pages that people read: targets and every figure; how cost grows. Measures nothing."""

from collections.abc import Iterable, Sequence
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
  A Kafka producer beside REST, its broker, the gateway and `wrk` share all cores, as they do on a small machine. The
  same load on an empty handler, which never comes to the broker, tells how much of it is the machine's; a bare loop of
  appends and fdatasyncs at the same rate beside REST tells how much is the disk's.
- **Loop lag** is the lateness of a 5 ms timer in headrace's event loop, the machine's share included.
"""

# These have a page of their own: they take the longest, and are seldom measured together with the others.
GROWTH = ("partitions", "connections", "log-size", "java")


def write(ledger: Ledger, page: Path) -> None:
    """The page of targets and figures and, beside it, its plot."""
    page.parent.mkdir(parents=True, exist_ok=True)
    ratios, growth = page.with_suffix(".svg"), growth_page(page)
    ratios.write_text(plot.ratios(ledger))
    others = [group.name for group in GROUPS if group.name not in GROWTH]
    link = f"\n\nWhat more partitions, connections and data cost: [{growth.name}]({growth.name})."
    sections = [
        "# Performance\n\nheadrace and Apache Kafka, measured in turn by the same clients. "
        "Written by `make bench`; do not edit by hand." + (link if growth.exists() else ""),
        f"![headrace relative to Apache Kafka]({ratios.name})",
        "## Targets\n\n" + _target_table(ledger),
        *_group_sections(ledger, others),
        *_not_measured(ledger, others),
        "## How it was measured\n\n" + _METHOD.rstrip(),
        "## The machine\n\n" + _table(("", ""), ledger.facts.items()),
    ]
    page.write_text("\n\n".join(sections) + "\n")


def growth_page(page: Path) -> Path:
    """Where the page of growing costs lies, beside the other one."""
    return page.with_name(f"{page.stem}-growth{page.suffix}")


def has_growth(ledger: Ledger) -> bool:
    return any(case.group in GROWTH for case in ledger.cases.values())


def write_growth(ledger: Ledger, page: Path) -> None:
    """The page of growing costs and its plot, beside the other page."""
    assert has_growth(ledger), "a page that is there is not replaced by an empty one"
    target = growth_page(page)
    target.parent.mkdir(parents=True, exist_ok=True)
    picture = target.with_suffix(".svg")
    picture.write_text(plot.scaling(ledger))
    measured = {case.group for case in ledger.cases.values()}
    missing = [f"`{name}`" for name in GROWTH if name not in measured]
    sections = [
        "# How cost grows\n\nAgainst partitions, connections and the size of the log, and by Kafka's own tools: "
        "headrace and Apache Kafka, measured in turn by the same clients. Written by `make bench`; do not edit by "
        f"hand. [The other figures]({page.name}) tell how they are taken; machine and run of these are described at "
        "the end, and may be others.",
        f"![cost against partitions, connections and log size]({picture.name})",
        *([f"Not in this run: {', '.join(missing)}."] if missing else []),
        *_group_sections(ledger, GROWTH),
        *_not_measured(ledger, GROWTH),
        "## The machine\n\n" + _table(("", ""), ledger.facts.items()),
    ]
    target.write_text("\n\n".join(sections) + "\n")


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
        yield "## Not measured\n\n" + _table(("case", "broker", "why"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
