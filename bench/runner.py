"""Who runs when: the brokers in turn, round after round, each sample on its own. Judges no figure."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench import topics
from bench.brokers import Broker, Policy, Served
from bench.clients import Clients, Figures
from bench.clusters import Cluster
from bench.ledger import METRICS, Case, Ledger
from bench.plan import Plan
from bench.processes import BenchError, NotServed, Processes
from bench.progress import Progress
from bench.quantity import readable


@dataclass(frozen=True, slots=True)
class Door:
    """One of two ways to the same broker, where those are what is compared; named like the brokers."""

    kind: str


Subject = TypeVar("Subject", Broker, type[Broker], Cluster, type[Cluster], Door)


class Bench:
    """What a group of cases is given to work with."""

    def __init__(
        self,
        plan: Plan,
        *,
        work: Path,
        processes: Processes,
        ledger: Ledger,
        progress: Progress,
    ) -> None:
        self.kinds, self.scale = plan.kinds, plan.scale
        self.repeat, self.repeat_long = plan.repeat, plan.repeat_long
        self.work, self.ledger, self.progress = work, ledger, progress
        self.clients = Clients(processes, work / "clients.log")
        self.processes = processes
        self._numbers = itertools.count(1)
        self._pair: tuple[Broker, ...] = ()

    def alternate(
        self, case: Case, subjects: Sequence[Subject], measure: Callable[[Subject], Figures], rounds: int
    ) -> None:
        """Each round measures every subject once; who comes first changes from round to round."""
        for round_ in range(rounds):
            for subject in subjects if round_ % 2 == 0 else subjects[::-1]:
                self.progress.doing(f"{case.id} · {subject.kind} · round {round_ + 1} of {rounds}")
                self._sample(case, subject, measure, round_)
                self.progress.done()

    def _sample(self, case: Case, subject: Subject, measure: Callable[[Subject], Figures], round_: int) -> None:
        os.sync()  # else the pages that one broker left dirty are written while the other is measured
        try:
            figures = measure(subject)
        except NotServed as missing:
            self.ledger.skip(case, subject.kind, str(missing))
            self.progress.say(f"{case.id} · {subject.kind} · not measured: {missing}")
            return
        except BenchError as failed:
            self.ledger.fail(case, subject.kind, str(failed))
            self.progress.say(f"{case.id} · {subject.kind} · failed: {failed}")
            return
        self.ledger.record(case, subject.kind, round_, figures)
        shown = ", ".join(f"{METRICS[name].label} {readable(name, value)}" for name, value in figures.items())
        self.progress.say(f"{case.id} · {subject.kind} · {shown}")

    @contextmanager
    def fresh(
        self,
        kind: type[Broker],
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Iterator[Broker]:
        """A broker with an empty data directory, not yet started; gone with its data afterwards."""
        home = self.new_home(kind.kind)
        broker = None
        try:
            broker = kind(self.processes, home, settings)
            broker.env.update(env or {})
            yield broker
        finally:
            if broker is not None:
                broker.kill()
            shutil.rmtree(home, ignore_errors=True)

    def new_home(self, kind: str) -> Path:
        return self.work / f"{kind}-{next(self._numbers)}"

    def pair(self) -> tuple[Broker, ...]:
        """Both brokers up and warm, for cases that load a running broker; one that died is started anew."""
        if not self._pair:
            for kind in self.kinds:
                self._start_of_pair(kind)
        for broker in self._pair:
            if not broker.is_running:
                broker.start()
        return self._pair

    def _start_of_pair(self, kind: type[Broker]) -> None:
        self.progress.doing(f"starting and warming up {kind.kind}")
        broker = kind(self.processes, self.new_home(kind.kind))
        self._pair += (broker,)
        broker.start()
        self.warm_up(broker)

    def warm_up(self, broker: Served) -> None:
        """A JVM needs some ten thousand calls before it compiles them, and a fair peer is a warm one."""
        with self.topic(broker, 1, Policy.PAGE_CACHE) as topic:
            count = self.scale.bulk_messages // 5
            self.clients.load("produce", broker, topic, {}, count=count)
            self.clients.load("consume", broker, topic, {}, count=count)
            conf = {"batch.num.messages": "1", "linger.ms": "0"}
            self.clients.load("produce", broker, topic, conf, count=self.scale.requests // 2)

    def run(self, groups: Sequence["Group"], after_each: Callable[[], None]) -> None:
        """Run the groups in order; the pair lives until the last group that needs it is done."""
        for group in groups:
            if self._pair and not group.on_pair:
                self.close_pair()
            try:
                group.run(self)
            except BenchError as failed:  # outside any sample: a broker of the pair did not come up
                self.ledger.fail(
                    Case(f"{group.name}/start", group.title, "before the first sample"), "pair", str(failed)
                )
                self.progress.say(f"{group.name} · not run: {failed}")
                self.close_pair()
            after_each()

    def run_program(self, command: Sequence[str], timeout_s: float) -> str:
        """Run one of the bench's own programs to its end and return what it printed."""
        return self.processes.run(command, log=self.work / "programs.log", timeout_s=timeout_s)

    def close_pair(self) -> None:
        for broker in self._pair:
            broker.kill()
            shutil.rmtree(broker.home, ignore_errors=True)
        self._pair = ()

    @contextmanager
    def topic(
        self, broker: Served, partitions: int, policy: Policy | None, configs: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """A new topic under the policy, or the broker's own default (None), deleted afterwards."""
        name = f"bench-{next(self._numbers)}"
        configs = {**(broker.policies[policy] if policy is not None else {}), **(configs or {})}
        topics.create(broker.bootstrap, [name], partitions, configs, broker.replicas)
        try:
            yield name
        finally:
            if broker.is_running:
                topics.delete(broker.bootstrap, [name])


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that belong together and are chosen together by --only."""

    name: str
    title: str
    run: Callable[[Bench], None]
    samples: Callable[[Plan], int]  # how many the progress bar should expect
    on_pair: bool = False
