"""The attributes of the spans at both ends of the queue, by the conventions for messaging."""

from orcastream.telemetry import names
from orcastream.telemetry.names import Attribute, Span


def messaging(operation: Span, template: str, model: str, priority_class: str, client: str) -> dict[Attribute, str]:
    """Return the attributes of an `operation` on the request streams named by `template`.

    `client` is the gateway or worker that performs it.
    """
    return {
        Attribute.MESSAGING_SYSTEM: names.MESSAGING_SYSTEM,
        Attribute.MESSAGING_OPERATION: operation.value,
        Attribute.MESSAGING_OPERATION_TYPE: operation.value,
        Attribute.DESTINATION: template,
        Attribute.CLIENT_ID: client,
        Attribute.MODEL: model,
        Attribute.REQUEST_CLASS: priority_class,
    }
