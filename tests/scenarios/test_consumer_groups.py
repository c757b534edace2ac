"""Transcripts of consumer groups, replayed live and rebuilt from the log after every line.

topics t=4 u=2            the topics that there are now
racks n1=east n2=west     the racks of brokers; partitions of topics set later are dealt to them in turn
join a t u ~regex key=…   member a joins; keys: instance, rack, assignor, as (the member id to use)
beat a owns t:0,1         a heartbeat with the epoch that a was told last; `at N` for another, `sub t` for other topics
leave a, pause a          for good; a static member for a while
+45s                      time passes
limit 2                   most members
interval 5                seconds that an assignment stands at least
state                     the group's state and members
why                       the cause of the last rebalance
-> …                      what is answered: the epoch and, if told, the partitions; or an error code
"""

import re
from pathlib import Path

import pytest

from headrace.core.group.consumer.model import HeartbeatReply, Partitions
from headrace.model.errors import RequestError
from tests.unit.core.group.consumer.consumer_kit import NAMES, Cluster, parts, same_groups

TRANSCRIPTS = sorted(Path(__file__).with_name("consumer_groups").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    if "~" in path.read_text():
        pytest.importorskip("re2", reason="expressions are matched by google-re2")
    player = Player()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        words, arrow, expected = (part.strip() for part in said.partition("->"))
        answer = player.play(words.split())
        if arrow:
            assert answer == expected, f"{path.name}:{number}: {line}"
        assert same_groups(player.cluster.rebuilt(), player.cluster.groups), f"{path.name}:{number}: lost on the way"


class Player:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self._epochs: dict[str, int] = {}
        self._instances: dict[str, str] = {}

    def play(self, words: list[str]) -> str:
        verb, *rest = words
        if verb.startswith("+"):
            self.cluster.pass_time(int(verb[1:-1]) * 1000)
            return ""
        try:
            return getattr(self, f"_{verb}")(rest)
        except RequestError as error:
            return error.code.name

    def _topics(self, words: list[str]) -> str:
        self.cluster.image.set_topics(**{name: int(count) for name, count in (word.split("=") for word in words)})
        return ""

    def _racks(self, words: list[str]) -> str:
        self.cluster.image.set_racks(**dict(word.split("=") for word in words))
        return ""

    def _limit(self, words: list[str]) -> str:
        self.cluster.rules = self.cluster.rules._replace(members_max=int(words[0]))
        return ""

    def _interval(self, words: list[str]) -> str:
        self.cluster.rules = self.cluster.rules._replace(assignment_interval_ms=int(words[0]) * 1000)
        return ""

    def _join(self, words: list[str]) -> str:
        name, *rest = words
        keys = dict(word.split("=") for word in rest if "=" in word)
        said: dict[str, object] = {"instance_id": keys.get("instance"), "rack_id": keys.get("rack")}
        said["assignor"] = keys.get("assignor")
        said["regex"] = next((word[1:] for word in rest if word.startswith("~")), None)
        topics = [word for word in rest if "=" not in word and not word.startswith("~")]
        if "instance" in keys:
            self._instances[name] = keys["instance"]
        return self._told(name, self.cluster.join(name, *topics, **said))

    def _beat(self, words: list[str]) -> str:
        name, *rest = words
        said = dict(zip(rest[::2], rest[1::2], strict=True))
        epoch = int(said["at"]) if "at" in said else self._epochs[name]
        more: dict[str, object] = {}
        if "owns" in said:
            more["owned"] = parsed(said["owns"])
        if "sub" in said:
            more["topics"] = tuple(said["sub"].split(","))
        return self._told(name, self.cluster.heartbeat(name, epoch, **more))

    def _leave(self, words: list[str]) -> str:
        self.cluster.heartbeat(words[0], -1, instance_id=self._instances.get(words[0]))
        return "left"

    def _pause(self, words: list[str]) -> str:
        self.cluster.heartbeat(words[0], -2, instance_id=self._instances.get(words[0]))
        return "left"

    def _state(self, words: list[str]) -> str:
        group = self.cluster.groups.get("g")
        return " ".join((group.state, *sorted(group.subscriptions)))

    def _why(self, words: list[str]) -> str:
        return self.cluster.causes[-1]

    def _told(self, name: str, reply: HeartbeatReply) -> str:
        self._epochs[name] = reply.epoch
        return f"epoch {reply.epoch}" + ("" if reply.assigned is None else f" {shown(reply.assigned)}")


def parsed(text: str) -> Partitions:
    found = re.findall(r"(\w+):([\d,]+?)(?=,?[a-z]|$)", text)
    return parts(**{topic: {int(one) for one in indexes.split(",")} for topic, indexes in found})


def shown(partitions: Partitions) -> str:
    rows = sorted(f"{NAMES[topic]}:{','.join(map(str, sorted(indexes)))}" for topic, indexes in partitions.items())
    return " ".join(rows) or "nothing"
