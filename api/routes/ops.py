"""For operators: is it alive, is it ready, what does it measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from engine import metrics

if TYPE_CHECKING:
    from engine import Log


class Health(BaseModel):
    """The answer of the health routes."""

    status: Literal["ok", "unavailable"]


def ops_router(log: Log) -> APIRouter:
    """The routes /healthz, /readyz and /metrics."""
    router = APIRouter(tags=["operations"])

    @router.get("/healthz")
    async def healthz() -> Health:
        """The process answers."""
        return Health(status="ok")

    @router.get("/readyz", responses={503: {"model": Health}})
    async def readyz(response: Response) -> Health:
        """Recovered, and able to acknowledge appends."""
        if log.is_ready:
            return Health(status="ok")
        response.status_code = 503
        return Health(status="unavailable")

    @router.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Everything the server measures, in the text format of Prometheus."""
        return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return router
