"""Fencing of pipeline instances: of several running instances of a pipeline only one may commit.

Every pipeline has a transactional id at the cluster that it reads from. A starting instance takes over the id, which
fences the previous instance: the broker rejects its next commit record. The id also identifies the state directory
that the pipeline belongs to:

    the same directory     an instance that was left running, or one on another host that shares the directory:
                           the newest is the owner
    another directory      has another checkpoint and would write everything again: rejected

The claim is a record in a compacted topic (commit_records.py), so that a pipeline keeps its directory however long it
is stopped. The committed offset of a group refers to it. Both are written in one transaction of the id, which only
its owner can do.
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
    """The pipeline belongs to another state directory, on this or another host."""


class Fenced(HeadraceError):
    """Another instance of the pipeline has taken over; this one must not write any more."""


class Instance(NamedTuple):
    """A pipeline instance, as recorded in its claim."""

    folder_id: str
    host: str
    folder: str
    process: int
    since_ms: int

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, state directory {self.folder}"


def this_copy(folder_id: str, folder: str) -> Instance:
    return Instance(folder_id, socket.gethostname(), folder, os.getpid(), int(time.time() * 1000))


class Claim:
    """An instance's right to commit batches of its pipeline."""

    def __init__(self, cluster: Cluster, pipeline: str, copy: Instance, owner: ProducerIdentity) -> None:
        self._cluster, self._pipeline, self._copy = cluster, pipeline, copy
        self.owner = owner

    def lost_to(self) -> Instance | None:
        """Returns the other instance that has the pipeline now; None if there is none.

        A fenced producer does not imply another instance: the broker also bumps the epoch when it aborts a
        transaction that has timed out. The pipeline is then restarted and claims its id again.
        """
        newest = holder(self._cluster, self._pipeline)
        return newest if newest is not None and newest != self._copy else None


def check_owner(cluster: Cluster, owner: ProducerIdentity) -> None:
    """Raises Fenced if another instance has taken over the id. It may also do so right after this check."""
    assert owner.transactional_id is not None
    known = describe(cluster, owner.transactional_id)
    if known is not None and (known.producer_id, known.producer_epoch) != (owner.producer_id, owner.epoch):
        raise Fenced(f"{owner.transactional_id.removeprefix(PREFIX)}: another instance of the pipeline has taken over")


def holder(cluster: Cluster, pipeline: str) -> Instance | None:
    """Returns the instance that claimed the pipeline last, whether it is running or not."""
    group = PREFIX + pipeline
    found = cluster.patiently(
        f"requesting the owner of {pipeline}",
        lambda: committed_offsets(cluster, group, [PLACE], stable=True).get(PLACE),
    )
    if found is None:  # never claimed, or so long ago that the group has expired
        text = newest(cluster, _key(pipeline))
    else:  # earlier versions stored the claim in the metadata itself
        is_here = is_reference(found.metadata)
        text = referred(cluster, _key(pipeline), found) if is_here else found.metadata
    return Instance(*json.loads(text)) if text is not None else None


def _key(pipeline: str) -> str:
    return f"pipeline {pipeline}"


def claim(cluster: Cluster, pipeline: str, copy: Instance, *, take_over: bool = False) -> Claim:
    """Takes over the pipeline; other instances cannot commit from here on. Raises OwnedElsewhereError if the pipeline
    belongs to another state directory.
    """
    create_topic_if_missing(cluster, TOPIC)
    ensure_records(cluster)
    _check_folder(pipeline, holder(cluster, pipeline), copy, take_over=take_over)
    owner = init_producer(cluster, PREFIX + pipeline, DECISION_TIMEOUT_MS)
    # Checked again: of two instances that start for the first time, the second one fences the first, and finds its
    # claim here if it was written.
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
