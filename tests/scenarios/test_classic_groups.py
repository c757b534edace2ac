"""Transcripts of classic groups, replayed live and rebuilt from the log after every line.

join a key=…        client a joins with the id it has; keys: topics, instance, session, rebalance (in seconds), speaks
                    (protocols, best first), type, old (does not know that ids are required), fresh (forgets its id)
sync a b=1 c=2      a asks for its share; what is behind it is what a leader shares out
beat a, leave a     heartbeat; goodbye. `at=7`: with another generation than the one it was told last
commit a t:0=5      a commits 5 for partition 0 of t; `commit - …` is a client without a group
fetch t:0           what is committed
delete, list        the group; what there is
+45s                time passes
crash               the coordinator dies, and a new one reads the log
limits key=…        at the beginning
-> a join: …        what a client is told for its request, in this step, whoever asked it to wait
=> …                the group's state, generation and members after the step
?? …                the cause of the last rebalance
"""

import os
from pathlib import Path

import pytest

from headrace.core.coordinator import RequestId
from headrace.core.group.coordinator_shard import NewOffset
from headrace.core.group.errors import MemberIdRequired
from headrace.core.group.group_manager import Committer
from headrace.core.group.model import (
    GroupCoordinatorConfig,
    GroupState,
    JoinReply,
    JoinRequest,
    MemberIdentity,
    Protocol,
    SyncReply,
    SyncRequest,
)
from headrace.model.errors import HeadraceError, RequestError
from headrace.model.ids import TopicPartition
from tests.unit.core.group.stage import Stage

TRANSCRIPTS = sorted(Path(__file__).with_name("classic_groups").glob("*.txt"))
# Set to write down what happens instead of checking it; the result is to be read before it is kept.
REWRITE = "HEADRACE_REWRITE_SCENARIOS" in os.environ

GROUP = "g"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    said = path.read_text().splitlines()
    happened: list[str] = []
    player = Player()
    for line in said:
        if line.startswith(("->", "=>", "??")):
            continue
        happened.append(line)
        words = line.partition("#")[0].split()
        if words:
            happened += player.play(words)
            player.stage.check_log()
    if REWRITE:
        path.write_text("\n".join(happened) + "\n")
    assert happened == said


class Client:
    def __init__(self, name: str) -> None:
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.options: dict[str, str] = {}


class Player:
    def __init__(self) -> None:
        self.stage = Stage()
        self._clients: dict[str, Client] = {}
        self._asked: dict[RequestId, tuple[Client, str]] = {}
        self._ids = 0
        self._state = ""

    def play(self, words: list[str]) -> list[str]:
        self.stage.answers.clear()
        self.stage.causes.clear()
        verb, *rest = words
        lines: list[str] = []
        if verb.startswith("+"):
            self.stage.pass_time(int(verb[1:-1]) * 1000)
        elif verb in ("limits", "crash"):
            getattr(self, f"_{verb}")(rest)
        else:
            lines = getattr(self, f"_{verb}")(rest)
        lines += [self._told(ticket, reply) for ticket, reply in self.stage.answers if ticket in self._asked]
        state = self._described()
        if state != self._state:
            lines.append(f"=> {state}")
            self._state = state
        return lines + [f"?? {cause}" for cause in self.stage.causes]

    def _limits(self, words: list[str]) -> None:
        numbers = {key: int(value) for key, value in (word.split("=") for word in words)}
        self.stage = Stage(GroupCoordinatorConfig(**numbers))

    def _crash(self, words: list[str]) -> None:
        self.stage.crash()

    def _client(self, name: str) -> Client:
        return self._clients.setdefault(name, Client(name))

    def _request(self, client: Client, verb: str, decide: object) -> list[str]:
        try:
            ticket = self.stage.call(decide)  # type: ignore[arg-type]
        except RequestError as error:
            return [f"-> {client.name} {verb}: {error.code.name}"]
        self._asked[ticket] = client, verb
        return []

    def _join(self, words: list[str]) -> list[str]:
        client = self._client(words[0])
        client.options |= {key: value for key, _, value in (word.partition("=") for word in words[1:])}
        options = client.options
        if options.pop("fresh", None) is not None:
            client.member_id = ""
        topics = options.get("topics", "t").encode()
        subscription = b"\x00\x01\x00\x00\x00\x01" + len(topics).to_bytes(2, "big") + topics
        request = JoinRequest(
            group_id=GROUP,
            member_id=client.member_id,
            instance_id=options.get("instance"),
            client_id=client.name,
            client_host="/127.0.0.1",
            session_timeout_ms=int(options.get("session", "10")) * 1000,
            rebalance_timeout_ms=int(options.get("rebalance", "60")) * 1000,
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(Protocol(name, subscription) for name in options.get("speaks", "range").split(",")),
            needs_known_id="old" not in options,
            can_skip_assignment="old" not in options,
        )
        self._ids += 1
        new_id = f"{client.name}-{self._ids}"
        return self._request(client, "join", lambda machine, ticket, now: machine.join(request, new_id, ticket, now))

    def _sync(self, words: list[str]) -> list[str]:
        client = self._client(words[0])
        shares = dict(word.split("=") for word in words[1:])
        generation = int(shares.pop("at", client.generation))
        assignments = {self._client(name).member_id: share.encode() for name, share in shares.items()}
        request = SyncRequest(
            group_id=GROUP,
            member_id=client.member_id,
            generation=generation,
            instance_id=client.options.get("instance"),
            assignments=assignments,
        )
        return self._request(client, "sync", lambda machine, ticket, now: machine.sync(request, ticket, now))

    def _beat(self, words: list[str]) -> list[str]:
        client = self._client(words[0])
        generation = int(dict(word.split("=") for word in words[1:]).get("at", client.generation))
        instance_id = client.options.get("instance")
        return self._request(
            client,
            "beat",
            lambda machine, ticket, now: machine.heartbeat(
                GROUP, client.member_id, instance_id, generation, ticket, now
            ),
        )

    def _leave(self, words: list[str]) -> list[str]:
        clients = [self._client(name) for name in words]
        leaving = [MemberIdentity(client.member_id, client.options.get("instance")) for client in clients]
        return self._request(
            clients[0], "leave", lambda machine, ticket, now: machine.leave(GROUP, leaving, ticket, now)
        )

    def _remove(self, words: list[str]) -> list[str]:
        """An administrator removes static members by their instance ids."""
        leaving = [MemberIdentity("", name) for name in words]
        admin = self._client("admin")
        return self._request(admin, "leave", lambda machine, ticket, now: machine.leave(GROUP, leaving, ticket, now))

    def _commit(self, words: list[str]) -> list[str]:
        client = Client("-") if words[0] == "-" else self._client(words[0])
        values = dict(word.split("=") for word in words[1:])
        generation = int(values.pop("at", client.generation))
        committer = Committer(client.member_id, client.options.get("instance"), generation)
        wanted = [NewOffset(_partition(place), int(offset)) for place, offset in values.items()]
        return self._request(
            client, "commit", lambda machine, ticket, now: machine.commit(GROUP, committer, wanted, ticket, now)
        )

    def _fetch(self, words: list[str]) -> list[str]:
        found = self.stage.machine.fetch(GROUP, Committer(), require_stable=True).offsets
        known = (found.get(_partition(word)) for word in words)
        return ["-> " + " ".join("none" if one is None else str(one.offset) for one in known)]

    def _delete(self, words: list[str]) -> list[str]:
        return self._request(
            self._client("admin"), "delete", lambda machine, ticket, now: machine.delete(GROUP, ticket)
        )

    def _expire(self, words: list[str]) -> list[str]:
        self.stage.carry_out(self.stage.machine.expire_offsets(self.stage.now))
        return []

    def _list(self, words: list[str]) -> list[str]:
        return [f"-> {one.group_id} {one.state} {one.kind}" for one in self.stage.machine.listings()] or ["-> nothing"]

    # What came of it

    def _told(self, ticket: RequestId, reply: object) -> str:
        client, verb = self._asked.pop(ticket)
        return f"-> {client.name} {verb}: {self._words(client, reply)}"

    def _words(self, client: Client, reply: object) -> str:
        match reply:
            case MemberIdRequired():
                client.member_id = reply.member_id
                return f"join again as {reply.member_id}"
            case HeadraceError():
                return reply.code.name
            case JoinReply():
                client.member_id, client.generation = reply.member_id, reply.generation
                members = " ".join(one.member_id for one in reply.members)
                leads = f", leads {members}" if members else f", {reply.leader} leads"
                skips = ", nothing to share out" if reply.skip_assignment else ""
                return f"{reply.member_id}, generation {reply.generation}, {reply.protocol}{leads}{skips}"
            case SyncReply():
                return reply.assignment.decode() or "nothing"
            case None:
                return "ok"
            case dict():
                return " ".join("ok" if one is None else one.code.name for one in reply.values())
            case _:
                return " ".join("ok" if one is None else one.code.name for one in reply)  # type: ignore[attr-defined]

    def _described(self) -> str:
        group = self.stage.machine.classic.get(GROUP)
        if group is None:
            return GroupState.DEAD
        words = [group.state, str(group.generation)]
        for member in group.members.values():
            waits = "(joins)" if member.joining else "(syncs)" if member.syncing else ""
            words.append(member.member_id + waits)
        if group.pending:
            words += ["expects", *sorted(group.pending)]
        return " ".join(words)


def _partition(place: str) -> TopicPartition:
    topic, _, index = place.partition(":")
    return TopicPartition(topic, int(index))
