"""The items an answer is made of: one message with one content part, and calls of functions.

Each is added, grows and is done; `finish` says the last word about it, in the order the real service does (recorded in
mid-2026): audio done before transcript done, content part done before item done, conversation.item.done before
response.output_item.done. A call has no content part.
"""

from protocol.alignment import SpokenText
from protocol.codec import MAX_DELTA_BYTES
from protocol.conversation import Conversation
from protocol.items import Entry, Item, ItemStatus, Part
from protocol.kept_audio import Clip
from protocol.response_options import ResponseOptions
from protocol.server_events import Address, PartWire, ServerEvents


class Stage:
    """What the items of one answer share: whose they are and where they are told of."""

    def __init__(
        self,
        response_id: str,
        options: ResponseOptions,
        conversation: Conversation,
        events: ServerEvents,
    ) -> None:
        self.response_id = response_id
        self.speaks = options.modality == "audio"
        self.format = options.format
        self.events = events
        self._out_of_band = options.out_of_band
        self._conversation = conversation
        # The answer follows what it answers, whatever is added meanwhile. None: it comes first.
        self._after = conversation.last_id
        self._count = 0

    def add(self, item: Item) -> tuple[int, Entry]:
        """Announce the answer's next item; its index among them and its place in the conversation."""
        index = self._count
        self._count += 1
        self.events.output_item_added(self.response_id, index, item)
        if self._out_of_band:
            return index, Entry(item)
        entry = self._conversation.place(item, self._after)
        self._after = item.id
        self.events.item_added(item, self._conversation.previous_id(entry))
        return index, entry

    def record(self, entry: Entry) -> Clip | None:
        """Keep what this item says; None for one that nobody can read back."""
        if self.speaks and not self._out_of_band:
            entry.clip = self._conversation.shelf.clip(self.format)
        return entry.clip

    def done(self, index: int, entry: Entry) -> None:
        """An item is as it will be. One that the client has deleted is told of by the response alone."""
        if self._conversation.get(entry.item.id) is entry:
            self.events.item_done(entry.item, self._conversation.previous_id(entry))
        self.events.output_item_done(self.response_id, index, entry.item)


class MessageOutput:
    """The words of an answer and, in audio mode, the voice that speaks them."""

    def __init__(self, stage: Stage, item_id: str) -> None:
        self.item = Item(
            id=item_id, type="message", status="in_progress", role="assistant", content=[]
        )
        self._stage = stage
        self._encode = stage.format.from_pcm
        self._spoken = SpokenText(stage.format.rate)
        self._index, self._entry = stage.add(self.item)
        if stage.speaks:
            self._entry.spoken = self._spoken
        self._clip = stage.record(self._entry)
        self._write_down("")
        fields = {
            "response_id": stage.response_id,
            "item_id": item_id,
            "output_index": self._index,
            "content_index": 0,
        }
        self._address = Address(
            fields, "output_audio_transcript" if stage.speaks else "output_text"
        )
        stage.events.part_added(self._address, self._part_wire(""))

    @property
    def audio_ms(self) -> int:
        """How long it has spoken."""
        return self._spoken.audio_ms

    def write_text(self, text: str) -> None:
        """More words; in audio mode they come just ahead of their audio."""
        self._spoken.write(text)
        self._stage.events.text_delta(self._address, text)

    def write_audio(self, pcm: bytes) -> None:
        """More voice: pcm16 at the rate of the answer's format."""
        self._spoken.speak(len(pcm))
        if len(pcm) <= MAX_DELTA_BYTES:  # as every tick's: written out
            audio = self._encode(pcm)
            self._stage.events.audio_delta(self._address, audio)
            if self._clip is not None:
                self._clip.add(audio)
            return
        for start in range(0, len(pcm), MAX_DELTA_BYTES):
            self._send(self._encode(pcm[start : start + MAX_DELTA_BYTES]))

    def _send(self, audio: bytes) -> None:
        self._stage.events.audio_delta(self._address, audio)
        if self._clip is not None:
            self._clip.add(audio)

    def finish(self, status: ItemStatus) -> None:
        """Close it. The events repeat all that was streamed, heard or not."""
        events, text = self._stage.events, self._spoken.text
        self.item.status = status
        if self._stage.speaks:
            events.audio_done(self._address)
        events.text_done(self._address, "transcript" if self._stage.speaks else "text", text)
        self._write_down(text)
        events.part_done(self._address, self._part_wire(text))
        self._stage.done(self._index, self._entry)

    def settle(self, *, was_cut_off: bool) -> None:
        """From now on remember what can have been heard instead."""
        if self._stage.speaks:
            if was_cut_off:
                self._spoken.drop_unspoken()
            self._entry.remember_heard()

    def _write_down(self, text: str) -> None:
        if self._stage.speaks:
            self.item.content = [Part(type="output_audio", transcript=text)]
        else:
            self.item.content = [Part(type="output_text", text=text)]

    def _part_wire(self, text: str) -> PartWire:
        """A content part as content_part events show it: named unlike the item's content, and no nulls."""
        if self._stage.speaks:
            return {"type": "audio", "transcript": text}
        return {"type": "text", "text": text}


class CallOutput:
    """A function that the answer calls."""

    def __init__(self, stage: Stage, item_id: str, call_id: str, name: str) -> None:
        self.item = Item(
            id=item_id,
            type="function_call",
            status="in_progress",
            name=name,
            call_id=call_id,
            arguments="",
        )
        self._stage = stage
        self._arguments: list[str] = []  # as they came
        self._index, self._entry = stage.add(self.item)
        self._fields = {
            "response_id": stage.response_id,
            "item_id": item_id,
            "output_index": self._index,
            "call_id": call_id,
        }

    def write(self, arguments: str) -> None:
        """More of the JSON text of the arguments."""
        self._arguments.append(arguments)
        self._stage.events.arguments_delta(self._fields, arguments)

    def finish(self, status: ItemStatus) -> None:
        """Close it. Half a call has no `arguments.done`: pipecat runs a function on that event alone."""
        self.item.status = status
        self.item.arguments = "".join(self._arguments)
        if status == "completed":
            assert self.item.name, self.item
            self._stage.events.arguments_done(self._fields, self.item.name, self.item.arguments)
        self._stage.done(self._index, self._entry)
