"""Routes of Spark pipelines: the last report of each."""

import time
from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import BaseModel, ConfigDict

from headrace.api.rest.errors import Problem
from headrace.api.rest.routing import After, Client, Limit, document, make_router, page

full = make_router("pipelines")

PipelineName = Annotated[
    str, Path(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/]+$", examples=["totals"], description="Its name.")
]


class PipelineReport(BaseModel):
    """A report, as the pipeline produced it after its last batch."""

    model_config = ConfigDict(extra="allow")

    pipeline: str
    at_ms: int
    seconds_ago: float


class PipelineList(BaseModel):
    pipelines: list[PipelineReport]
    next: str | None


@full.get("/pipelines", response_model=PipelineList)
async def list_pipelines(client: Client, limit: Limit = 100, after: After = None) -> Response:
    """Lists pipelines that report to this cluster: rows, rates, lag, dead-letter records, and age of the report."""
    reports = await client.pipelines.reports()
    part, following = page(sorted(reports), limit, after)
    return document({"pipelines": [_shown(reports[name]) for name in part], "next": following})


@full.get("/pipelines/{name}", response_model=PipelineReport)
async def describe_pipeline(client: Client, name: PipelineName) -> Response:
    """Returns the last report of a pipeline."""
    report = (await client.pipelines.reports()).get(name)
    if report is None:
        raise Problem(
            404,
            f"no pipeline {name} has reported to this cluster; `headrace pipeline list` shows the pipelines of a host",
        )
    return document(_shown(report))


def _shown(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "seconds_ago": round(max(time.time() - report["at_ms"] / 1000, 0.0), 1)}
