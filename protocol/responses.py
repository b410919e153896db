"""The answers under way: at most one in the conversation, a few beside it."""

from protocol.commands import CancelResponse, Command
from protocol.conversation import Conversation
from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.response import Ending, Response, ResponseUsage
from protocol.response_options import ResponseOptions
from protocol.server_events import ServerEvents


class Responses:
    """Opens answers, finds them by id, and ends them."""

    def __init__(
        self, conversation: Conversation, events: ServerEvents, ids: IdFactory, max_out_of_band: int
    ) -> None:
        self._conversation = conversation
        self._events = events
        self._ids = ids
        self._max_out_of_band = max_out_of_band
        self.active: Response | None = None  # the one in the conversation, if any
        self._beside: dict[str, Response] = {}  # out-of-band ones, by id
        self._has_spoken = False  # an answer that has ended was heard

    @property
    def has_spoken(self) -> bool:
        """Whether the caller has heard any answer: from then on the session's voice stays."""
        return self._has_spoken or (self.active is not None and self.active.has_spoken)

    def refusal(self, options: ResponseOptions) -> ProtocolError | None:
        """Why no such answer may be opened now, if so."""
        if options.out_of_band:
            if len(self._beside) < self._max_out_of_band:
                return None
            return ProtocolError(
                "rate_limit_exceeded",
                f"At most {self._max_out_of_band} out-of-band responses may be in progress.",
            )
        if self.active is None:
            return None
        return ProtocolError(
            "conversation_already_has_active_response",
            "Conversation already has an active response in progress: "
            f"{self.active.id}. Wait until the response is finished before creating a new one.",
        )

    def open(self, options: ResponseOptions) -> Response:
        """A new answer; `refusal` must have had nothing against it."""
        response = Response(options, self._conversation, self._events, self._ids)
        if options.out_of_band:
            self._beside[response.id] = response
        else:
            assert self.active is None, self.active
            self.active = response
        return response

    def find(self, response_id: str) -> Response | None:
        """The answer under way of that id; None for one that has ended or never was."""
        if self.active is not None and self.active.id == response_id:
            return self.active
        return self._beside.get(response_id)

    def end(self, response: Response, ending: Ending, usage: ResponseUsage | None) -> None:
        """Close an answer under way."""
        response.end(ending, usage)
        self._has_spoken = self._has_spoken or response.has_spoken
        if response is self.active:
            self.active = None
        else:
            del self._beside[response.id]

    def cancel(self, response: Response, ending: Ending) -> list[Command]:
        """Close an answer before its time and have the engine stop."""
        self.end(response, ending, None)
        return [CancelResponse(response.id)]
