"""One running copy of a pipeline, wherever its copies are: the cluster that it reads from says which one.

A pipeline has a transactional id at its cluster. Starting takes the id over, which fences whoever had it: the broker
refuses his next decision over a batch. Under the id stands which state folder the pipeline belongs to:

    the same folder     a copy that was left behind, or one on another machine that shares the folder: the newest wins
    another folder      has another checkpoint and would write everything a second time: it is refused

The claim is a record in a compacted topic (commit_records.py), so that a pipeline keeps its directory however long it
is stopped, and the committed offset of a group refers to it. Both are written in one transaction of the id itself, so
only its owner can write them.
"""

import json
import os
import socket
import time
from typing import NamedTuple

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.client import Cluster, create_topic_if_missing
from headrace.client.sync.offsets import Committed, committed_offsets
from headrace.client.sync.transactions import (
    ProducerIdentity,
    add_group_offsets,
    describe,
    end_transaction,
    init_producer,
)
from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark.connector.commit_records import append, ensure_records, is_reference, newest, referred
from headrace.spark.connector.exactly_once import DECISION_TIMEOUT_MS, PLACE, TOPIC

PREFIX = "headrace-pipeline-copy-"


class OwnedElsewhereError(InvalidConfig):
    """The pipeline belongs to a state folder on another machine, or to another one of this."""


class Fenced(HeadraceError):
    """Another copy of the pipeline has taken over; this one must write nothing any more."""


class Instance(NamedTuple):
    """A running copy, as others may see it."""

    folder_id: str
    host: str
    folder: str
    process: int
    since_ms: int

    def __str__(self) -> str:
        return f"process {self.process} at {self.host}, folder {self.folder}"


def this_copy(folder_id: str, folder: str) -> Instance:
    return Instance(folder_id, socket.gethostname(), folder, os.getpid(), int(time.time() * 1000))


class Claim:
    """The right of one copy to decide over the batches of a pipeline."""

    def __init__(self, cluster: Cluster, pipeline: str, copy: Instance, owner: ProducerIdentity) -> None:
        self._cluster, self._pipeline, self._copy = cluster, pipeline, copy
        self.owner = owner

    def lost_to(self) -> Instance | None:
        """The other copy that has the pipeline now; None if none has.

        Being fenced is not enough to tell: a decision that took longer than its time is ended by the broker, which
        takes the id over for that. Then the pipeline is started again and claims it anew.
        """
        newest = holder(self._cluster, self._pipeline)
        return newest if newest is not None and newest != self._copy else None


def check_owner(cluster: Cluster, owner: ProducerIdentity) -> None:
    """Fenced if somebody else has the id. Asks only, so another copy may start right behind the answer."""
    assert owner.transactional_id is not None
    known = describe(cluster, owner.transactional_id)
    if known is not None and (known.producer_id, known.producer_epoch) != (owner.producer_id, owner.epoch):
        raise Fenced(f"{owner.transactional_id.removeprefix(PREFIX)}: another instance of the pipeline has taken over")


def holder(cluster: Cluster, pipeline: str) -> Instance | None:
    """The copy that claimed the pipeline last, running or not."""
    group = PREFIX + pipeline
    found = cluster.patiently(
        f"requesting the owner of {pipeline}",
        lambda: committed_offsets(cluster, group, [PLACE], stable=True).get(PLACE),
    )
    if found is None:  # never claimed, or so long ago that the group has expired
        text = newest(cluster, _key(pipeline))
    else:  # earlier versions wrote the claim itself
        is_here = is_reference(found.metadata)
        text = referred(cluster, _key(pipeline), found) if is_here else found.metadata
    return Instance(*json.loads(text)) if text is not None else None


def _key(pipeline: str) -> str:
    return f"pipeline {pipeline}"


def claim(cluster: Cluster, pipeline: str, copy: Instance, *, take_over: bool = False) -> Claim:
    """From here on no other copy decides. OwnedElsewhereError if the pipeline is not this folder's."""
    create_topic_if_missing(cluster, TOPIC)
    ensure_records(cluster)
    _check_folder(pipeline, holder(cluster, pipeline), copy, take_over=take_over)
    owner = init_producer(cluster, PREFIX + pipeline, DECISION_TIMEOUT_MS)
    # Two that start for the first time see nobody; whoever came second fences the first, and sees it here if it wrote.
    _check_folder(pipeline, holder(cluster, pipeline), copy, take_over=take_over)
    try:
        reference = append(cluster, owner, _key(pipeline), json.dumps(copy))
        add_group_offsets(cluster, owner, PREFIX + pipeline, {PLACE: Committed(copy.since_ms, reference)})
        end_transaction(cluster, owner, commit=True)
    except KafkaApiError as refusal:
        raise Fenced(f"{pipeline}: another instance started at the same moment ({refusal})") from refusal
    return Claim(cluster, pipeline, copy, owner)


def _check_folder(pipeline: str, known: Instance | None, copy: Instance, *, take_over: bool) -> None:
    if known is None or known.folder_id == copy.folder_id or take_over:
        return
    raise OwnedElsewhereError(
        f"{pipeline} belongs to the state directory {known.folder} at {known.host}, with its checkpoint: a second "
        "instance would write everything again. Run it there, give this one another name, or use --take-over if that "
        "directory is lost"
    )
