"""What FastAPI gives when a handler does nothing, on the same server with the same limits: the gateway's measure.

python -m bench.empty_app PORT
"""

import sys

import uvicorn
from fastapi import FastAPI

from headrace.api.rest.server import LimitedProtocol

app = FastAPI()


@app.post("/empty")
async def empty() -> dict[str, bool]:
    return {"ok": True}


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        http=LimitedProtocol,
        loop="uvloop",
        ws="none",
        access_log=False,
        log_level="warning",
    )
