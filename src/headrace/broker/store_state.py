"""Whether this broker can use the metadata store, and whether it acts as the controller."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def store_problem(broker: "Broker") -> str | None:
    """Why cluster metadata cannot change through this broker; None if it can."""
    figures, membership = broker.store_figures, broker.membership
    if membership is not None and (membership.may_be_fenced or figures.session_failure is not None):
        cause = figures.session_failure or "no response"
        age_s = membership.session_age_ms / 1000
        return f"the metadata store has not confirmed this broker's session for {age_s:.0f} s ({cause})"
    if figures.write_failure is not None:
        return f"the metadata store does not accept writes ({figures.write_failure})"
    return None


def is_active_controller(broker: "Broker") -> bool:
    """Whether this broker is the controller and can commit: without a session another one may be, or none."""
    is_controller = broker.membership is None or broker.image.controller == broker.node_id
    return is_controller and store_problem(broker) is None
