"""The routes of the console."""

from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Route

from orcastream.gateway.console.events import ConsoleEvents
from orcastream.gateway.console.feed import StatsFeed
from orcastream.gateway.console.page import ConsolePage
from orcastream.gateway.console.policy import PolicyOrder

if TYPE_CHECKING:
    from orcastream.gateway.service import Gateway


def console_routes(gateway: "Gateway") -> list[BaseRoute]:
    """Return the console's routes; none if it is disabled."""
    if not gateway.settings.console:
        return []
    page = ConsolePage()
    return [
        Route("/console", page.index, methods=["GET"]),
        Route("/console/events", ConsoleEvents(gateway, StatsFeed(gateway)).get, methods=["GET"]),
        Route("/console/policy", PolicyOrder(gateway).post, methods=["POST"]),
        Route("/console/{name}", page.file, methods=["GET"]),
    ]
