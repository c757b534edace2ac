"""`headrace pipeline backfill` and `retry-dead`: process the history of topics; send dead-letter records again."""

import signal
from contextlib import closing
from typing import Annotated

import typer

from headrace.cli.common.errors import fail, fail_usage, failures_told
from headrace.cli.common.exit_codes import NOT_FOUND
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.common.output import note, plural, print_json, print_table
from headrace.cli.pipeline.options import (
    File,
    Master,
    Remote,
    exit_with,
    read_definition,
    read_file,
    refuse_second,
    spark_needed,
    worker_arguments,
)


def backfill(
    file: File,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    start: Annotated[
        str, typer.Option("--from", metavar="START", help="Start of the history: earliest, or offsets as JSON.")
    ] = "earliest",
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Process history up to an exact offset of each partition, where the stream continues or has begun.

    The history of a pipeline that was never started ends at the current end of its topics. Otherwise it ends where the
    stream began, and the stream may run at the same time. If it was killed, run the same command again to continue.
    """
    from headrace.pipeline.state import AlreadyRunning, PipelineState, state_root
    from headrace.pipeline.supervisor import Supervisor
    from headrace.spark.pipeline.start_offsets import (
        BACKFILL,
        BACKFILL_SUFFIX,
        check_backfill_apart,
        has_begun,
        unfinished_backfill,
    )

    definition, pipeline = read_definition(file)
    main = PipelineState(pipeline.name, state_root())
    with failures_told(bootstrap), spark_needed():
        beside = has_begun(main) and unfinished_backfill(main) is None
        if beside:
            check_backfill_apart(main, pipeline)
        state = PipelineState(pipeline.name + BACKFILL_SUFFIX, state_root()) if beside else main
        if state.read(BACKFILL) is not None and unfinished_backfill(state) is None:
            note(f"the history of {pipeline.name} was already read; `headrace pipeline reset` deletes that state")
            return
        refuse_second(state)
        arguments = worker_arguments(state, definition, bootstrap, master, remote)
        supervisor = Supervisor(state, [*arguments, "--backfill-from", start, *(["--beside"] if beside else [])])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, supervisor.ask_to_stop)
        try:
            code = supervisor.run()
        except AlreadyRunning as error:
            fail(str(error))
    exit_with(code, pipeline.name)
    if unfinished_backfill(state) is not None:
        note("stopped before the end; run the same command to continue")
        return
    note(f"history was read; `headrace pipeline start {file}` continues at its end")


def retry_dead(
    file: File,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="Only those whose error contains this text.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print their number by error only.")] = False,
    as_json: Json = False,
) -> None:
    """Send dead-letter records again, with their key, value, headers and timestamp. Each is sent once.

    They are sent to the pipeline's `retry_topic`. Without one they are sent to the partitions they came from, and all
    consumers of these topics read them a second time.
    """
    from headrace.pipeline.dead_letters import Chosen, DeadLetters
    from headrace.pipeline.kafka_access import security_of, security_options

    pipeline = read_file(file)
    if pipeline.dead_letters is None:
        fail_usage(f"{pipeline.name} has no dead-letter topic", "configure one: `dead_letters: TOPIC`")
    security = security_of(security_options(pipeline))
    opened = DeadLetters(bootstrap, pipeline.dead_letters, security, pipeline.retry_topic)
    with failures_told(bootstrap), closing(opened) as letters:
        chosen = Chosen(pipeline.name, error, limit)
        summary = letters.look(chosen) if dry_run else letters.retry(chosen)
    if as_json:
        print_json({"sent": summary.sent, "by_error": summary.by_error, "homeless": summary.homeless})
    else:
        print_table(("error", "records"), summary.by_error.most_common(), numbers=1)
    if not dry_run:
        note(f"{plural(summary.sent, 'record')} sent again; recorded in {letters.ledger}")
    for place, count in summary.homeless.items():
        note(f"{plural(count, 'dead-letter record')} not sent: {place} does not exist any more")
    if summary.homeless:
        raise typer.Exit(NOT_FOUND)
