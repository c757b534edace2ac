"""Worker process of one pipeline: claims the pipeline, opens Spark, and runs the queries until a stop request.

Exit codes: 0 success or stop request, 2 invalid pipeline, 3 another instance has taken over (do not restart after
either), 4 the disk of the state directory is full, 1 any other error.
"""

import argparse
import logging
import os
import signal
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.client import ClientConfig, Cluster
from headrace.client.sync.transactions import ProducerIdentity
from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.kafka_access import client_of, security_options
from headrace.pipeline.state import PipelineState
from headrace.pipeline.stored_definition import read_any
from headrace.process.restart_policy import DONE, FAILED, REFUSED, TAKEN_OVER, failure_code
from headrace.spark.pipeline.ownership import Claim, Fenced, check_owner, claim, this_copy
from headrace.spark.pipeline.retry_topic import pin_retries
from headrace.spark.pipeline.runner import Running
from headrace.spark.pipeline.sinks import RunContext
from headrace.spark.pipeline.start_offsets import BACKFILL_SUFFIX, fix_backfill_range, has_begun
from headrace.spark.session import open_session

log = logging.getLogger(__name__)

# Time to wait for an unavailable broker, as in the source.
PATIENCE_S = 300.0
LOOK_PATIENCE_S = 2.0  # short, because a stop request may be pending
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(pipeline: Pipeline, given: argparse.Namespace) -> int:
    settings = client_of(pipeline, given.bootstrap, client_id="headrace-pipeline", patience_s=PATIENCE_S)
    with closing(Cluster(settings)) as cluster:
        return _run(pipeline, given, cluster)


def _run(pipeline: Pipeline, given: argparse.Namespace, cluster: Cluster) -> int:
    main_state = PipelineState(pipeline.name, given.state)
    state = PipelineState(pipeline.name + BACKFILL_SUFFIX, given.state) if given.beside else main_state
    claimed = claim(cluster, state.name, this_copy(state.identity(), str(state.folder)), take_over=given.take_over)
    pin_retries(state, pipeline, cluster, has_begun=has_begun(state))
    if given.backfill_from is not None:
        fix_backfill_range(state, main_state, pipeline, given.bootstrap, given.backfill_from)
    place = RunContext(given.bootstrap, str(state.checkpoint), claimed.owner, security_options(pipeline))
    running = Running(pipeline, state, place, lambda: _look_for_newer(cluster.settings, claimed.owner))
    for number in STOP_SIGNALS:
        signal.signal(number, running.ask_to_stop)
    try:
        spark = open_session(pipeline.group, master=given.master, remote=given.remote, settings=pipeline.spark)
        running.run(spark, only_backfill=given.backfill_from is not None)
    except InvalidConfig:
        raise
    except Exception as error:
        return ended(claimed, error, was_asked=running.is_asked_to_stop)
    return DONE


def _look_for_newer(settings: ClientConfig, owner: ProducerIdentity) -> None:
    """Raises Fenced if there is a newer instance. An unavailable broker is logged and ignored."""
    cluster = Cluster(replace(settings, patience_s=LOOK_PATIENCE_S))
    try:
        check_owner(cluster, owner)
    except (OSError, KafkaApiError) as error:
        log.warning("Cannot check whether another instance runs: %s", error)
    finally:
        cluster.close()


def ended(claimed: Claim, error: Exception, *, was_asked: bool) -> int:
    """Returns the exit code after an error of the queries. Checks whether another instance has taken over, unless a
    stop was requested.
    """
    # Signals end the process at once: no batch is left to finish, and an unavailable broker may delay the check by
    # minutes.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    newer = None if was_asked else claimed.lost_to()
    if newer is not None:
        log.error("Another instance has taken over: %s", newer)
        return TAKEN_OVER
    if isinstance(error, (HeadraceError, Fenced)):
        log.error("%s", error)
    else:
        log.error("the pipeline ended", exc_info=error)
    return failure_code(error)


def main(arguments: list[str]) -> int:
    given = _arguments().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return run(read_any(given.file), given)
    except InvalidConfig as error:
        log.error("%s", error)
        return REFUSED
    except HeadraceError as error:
        log.error("%s", error)
        return FAILED
    except Exception as error:
        log.exception("the pipeline ended")
        return failure_code(error)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headrace.spark.pipeline.worker", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--state", type=Path, required=True, help="directory of the state directories of all pipelines")
    parser.add_argument("--master")
    parser.add_argument("--remote")
    parser.add_argument("--take-over", action="store_true")
    parser.add_argument("--backfill-from", metavar="START", help="process the history from this position, then exit")
    parser.add_argument("--beside", action="store_true", help="use a checkpoint of its own, next to the stream's")
    return parser


if __name__ == "__main__":
    code = main(sys.argv[1:])
    try:
        sys.stderr.flush()
    except OSError:  # the log is on a full disk: Python would exit with another code
        os._exit(code)
    sys.exit(code)
