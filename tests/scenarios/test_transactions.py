"""Transcripts of transactions, replayed live and rebuilt from the log after every line.

init a              process a starts with the transactional id `x`; `init a again`: it names who it was, to go on
                    after an error; `timeout=5`: seconds
add a t:0 t:1       a's transaction is about to write to these partitions
write a t:0         a writes there: would the partition let it?
commit a, abort a   a ends its transaction
markers             every partition has taken its marker
+5s                 time passes
crash               the coordinator dies, and a new one reads the log
… v2                at the end of add, commit and abort: the client speaks `transaction.version` 2
-> …                what the client is told
=> …                state, producer id and epoch, and partitions of `x` after the step, where they have changed
"""

import os
from pathlib import Path

import pytest

from headrace.core.transaction.metadata import ProducerIdentity
from headrace.model.errors import RequestError
from headrace.model.ids import TopicPartition
from tests.unit.core.transaction.stage import Stage

TRANSCRIPTS = sorted(Path(__file__).with_name("transactions").glob("*.txt"))
# Set to write down what happens instead of checking it; the result is to be read before it is kept.
REWRITE = "HEADRACE_REWRITE_SCENARIOS" in os.environ


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    said = path.read_text().splitlines()
    happened: list[str] = []
    player = Player()
    for line in said:
        if line.startswith(("->", "=>")):
            continue
        happened.append(line)
        words = line.partition("#")[0].split()
        if words:
            happened += player.play(words)
    if REWRITE:
        path.write_text("\n".join(happened) + "\n")
    assert said == happened


class Player:
    def __init__(self) -> None:
        self.stage = Stage()
        self.owners: dict[str, ProducerIdentity] = {}
        self.shown = ""

    def play(self, words: list[str]) -> list[str]:
        try:
            told = self._do(*words)
        except RequestError as error:
            told = f"-> {error.code.name}"
        lines = [told] if told else []
        state = self._state()
        if state != self.shown:
            self.shown = state
            lines.append(f"=> {state}")
        return lines

    def _state(self) -> str:
        found = self.stage.machine.transactions.get("x")
        if found is None:
            return "forgotten" if self.shown else ""
        places = " ".join(f"{topic}:{index}" for topic, index in sorted(found.partitions))
        return f"{found.state.label} {found.producer_id}/{found.epoch} {places}".rstrip()

    def _do(self, verb: str, *words: str) -> str:
        if verb.startswith("+"):
            self.stage.advance(int(verb[1:-1]) * 1000)
        elif verb == "crash":
            self.stage.restart()
        elif verb == "markers":
            self.stage.markers()
        else:
            return self._ask(verb, words[0], list(words[1:]))
        return ""

    def _ask(self, verb: str, who: str, words: list[str]) -> str:
        version = 2 if words[-1:] == ["v2"] else 0
        places = [TopicPartition(word[:-2], int(word[-1])) for word in words if ":" in word]
        if verb == "init":
            self._init(who, words)
        elif verb == "add":
            self.stage.add(self.owners[who], *places, version=version)
            return "-> ok"
        elif verb == "write":
            self.stage.machine.check_partition("x", self.owners[who], places[0])
            return "-> ok"
        else:
            self.owners[who] = self.stage.end(self.owners[who], commit=verb == "commit", version=version)
        producer_id, epoch = self.owners[who]
        return f"-> {producer_id}/{epoch}"

    def _init(self, who: str, words: list[str]) -> None:
        timeout_s = next((int(word.partition("=")[2]) for word in words if word.startswith("timeout=")), 60)
        expected = self.owners[who] if "again" in words else None
        self.owners[who] = self.stage.init(expected=expected, timeout_ms=timeout_s * 1000)
