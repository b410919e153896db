"""A client's mistake, as a value: it becomes one `error` event and the session goes on."""

import msgspec


class ProtocolError(msgspec.Struct, frozen=True):
    """What the `error` event says. `param` names the offending field, `event_id` the offending client event."""

    code: str
    message: str
    param: str | None = None
    event_id: str | None = None
    type: str = "invalid_request_error"

    def about(self, event_id: str | None) -> "ProtocolError":
        """The same error, pointing at the client event that caused it."""
        return msgspec.structs.replace(self, event_id=self.event_id or event_id)


def invalid_value(message: str, param: str | None = None) -> ProtocolError:
    """The commonest mistake: a field whose value is not acceptable."""
    return ProtocolError("invalid_value", message, param)


def missing(param: str) -> ProtocolError:
    """A required field that is not there."""
    return ProtocolError(
        "missing_required_parameter", f"Missing required parameter: '{param}'.", param
    )
