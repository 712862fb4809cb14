"""Takes in updates: runs the checks in order, gives each a slot in the spool, and lists refusals in the history."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from parlmesh.errors import FleetError, InvalidInput, PermissionDenied, Unavailable
from parlmesh.federation.schema import ModelSchema, TensorSpec
from parlmesh.federation.virtual_nodes import host_of
from parlmesh.security import Identity
from parlmesh.telemetry import get_logger

from .. import metrics
from ..rules import events
from ..rules.events import Event
from ..rules.records import LONGEST_MESSAGE, Offer
from ..rules.rounds import Rounds
from ..rules.update_checks import MASKED, check_claims, check_shape
from .arriving_update import SpoolWriter
from .update_spool import Spool

log = get_logger("parlmesh.learner")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class UpdateAbout:
    """The header of an update."""

    tensors: Sequence[TensorSpec]
    schema_digest: bytes
    size_bytes: int
    encoding: str
    metrics: dict[str, float]


class UpdateIntake:
    """Receives the updates of one federation, whichever RPC brings them."""

    def __init__(
        self,
        federation_id: str,
        core: Rounds,
        schema: ModelSchema,
        spool: Spool,
        handle: Callable[[Event], None],
        interrupt: Callable[[OSError], FleetError],
    ) -> None:
        self._federation_id = federation_id
        self._core = core
        self._schema = schema
        self._spool = spool
        self._handle = handle
        # Makes the error to raise when the disk does not take an update.
        self._interrupt = interrupt
        # By nonce, so that a node that reconnects has one upload, not two.
        self._open_uploads: dict[str, OpenUpdate] = {}
        self._in_flight: set[int] = set()
        self._free: Iterator[int] = iter(())
        self._returned: list[int] = []
        self._free_of_round = -1
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Updates that have started and not ended."""
        return len(self._in_flight)

    def open(self, offer: Offer, about: UpdateAbout, caller: Identity) -> "OpenUpdate":
        """Opens an update to feed its data to; FleetError when it is refused, which the history then lists."""
        try:
            return self._open(offer, about, caller)
        except FleetError as error:
            self.refuse(offer, error)
            raise

    def refuse(self, offer: Offer, error: FleetError) -> None:
        """Lists a refusal in the history."""
        if self._closed or isinstance(error, Unavailable):
            return
        metrics.UPDATES.labels(error.reason.lower()).inc()
        # Strangers do not belong in the history, and refusals must not fill it.
        if isinstance(error, PermissionDenied) or not self._core.history.lists(offer.round, offer.node_id):
            metrics.UNLISTED.inc()
            return
        log.warning(
            "update_refused",
            federation_id=self._federation_id,
            node_id=offer.node_id,
            round=offer.round,
            reason=error.reason,
            message=error.message,
        )
        self._handle(events.Refused(offer.node_id, offer.round, error.reason, error.message[:LONGEST_MESSAGE]))

    def close(self) -> None:
        """Ends the intake; updates in flight are dropped without an entry in the history."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the learner is stopping", reason="STOPPING")

    def _open(self, offer: Offer, about: UpdateAbout, caller: Identity) -> "OpenUpdate":
        self._check_open()
        secure = self._core.config.secure.enabled
        if secure:
            # Anything a node sends besides its masked update would reveal something about that node.
            offer, about = replace(offer, samples=1), replace(about, metrics={})
        if not caller.speaks_for(host_of(offer.node_id)):
            text = f'"{caller.name}" may not speak for node "{offer.node_id}"'
            raise PermissionDenied(text, reason="WRONG_NODE", node_id=offer.node_id)
        if self._core.check(offer) is not None:
            return OpenUpdate(self, offer, about, None)
        check_claims(offer.samples, about.metrics, self._core.config)
        wanted = MASKED if secure else self._core.config.compression.encoding
        same_schema = about.schema_digest == self._schema.digest
        check_shape(self._schema, None if same_schema else about.tensors, about.size_bytes, about.encoding, wanted)
        earlier = self._open_uploads.pop(offer.nonce, None)
        if earlier is not None:
            earlier.give_way(Unavailable("the same update is sent by another stream", reason="SUPERSEDED"))
        slot = self._take_slot()
        try:
            receiver = SpoolWriter(self._spool, slot, offer, about.size_bytes, about.encoding)
        except FleetError:
            self._return_slot(slot)
            raise
        arrival = self._open_uploads[offer.nonce] = OpenUpdate(self, offer, about, receiver)
        return arrival

    def _take_slot(self) -> int:
        """A slot that neither an accepted update nor one in flight occupies."""
        if self._free_of_round != self._core.round:
            self._end_old_uploads()
            used = self._core.used_slots() | self._in_flight
            self._free = (slot for slot in itertools.count() if slot not in used)
            self._free_of_round, self._returned = self._core.round, []
            self._spool.shrink(max(len(self._core.assignments), 1 + max(used, default=0)))
        slot = self._returned.pop() if self._returned else next(self._free)
        self._in_flight.add(slot)
        return slot

    def _end_old_uploads(self) -> None:
        """Ends uploads that a closed round was still waiting for, so that they hold no slots."""
        for nonce, arrival in list(self._open_uploads.items()):
            try:
                self._core.check(arrival.offer)
            except FleetError as error:
                del self._open_uploads[nonce]
                arrival.give_way(error)

    def _stored(self, work: Callable[[], _T]) -> _T:
        """A full disk is not the node's fault, so it is asked to try again."""
        try:
            return work()
        except OSError as error:
            raise self._interrupt(error) from error

    def _ended(self, arrival: "OpenUpdate") -> None:
        if self._open_uploads.get(arrival.nonce) is arrival:
            del self._open_uploads[arrival.nonce]

    def _return_slot(self, slot: int) -> None:
        self._in_flight.discard(slot)
        self._returned.append(slot)

    def _deliver(self, receiver: SpoolWriter, about: UpdateAbout) -> None:
        self._check_open()
        metrics.UPDATE_BYTES.inc(about.size_bytes)
        self._handle(events.Delivered(self._stored(lambda: receiver.finish(about.metrics))))
        self._in_flight.discard(receiver.slot)
        metrics.UPDATES.labels("accepted").inc()


class OpenUpdate:
    """One update in flight. It ends with `finish`, with a refusal by any call, or with `break_off`."""

    def __init__(self, intake: UpdateIntake, offer: Offer, about: UpdateAbout, receiver: SpoolWriter | None) -> None:
        self._intake = intake
        self.offer = offer
        self._about = about
        # None when the same update is already here and its data is not wanted again.
        self._receiver = receiver
        self._unread = about.size_bytes
        self._unwanted: FleetError | None = None

    @property
    def round(self) -> int:
        """The round it counts in."""
        return self.offer.round

    @property
    def nonce(self) -> str:
        """The nonce that binds it to its assignment."""
        return self.offer.nonce

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return self._unread

    def take(self, data: memoryview) -> None:
        """Takes a piece of its data."""
        self._check_wanted()
        receiver = self._receiver
        if receiver is not None:
            try:
                self._intake._stored(lambda: receiver.take(data))
            except FleetError as error:
                self._refuse(receiver, error)
                raise
        self._unread -= len(data)

    def give_way(self, error: FleetError) -> None:
        """Releases its slot, because the node sends it again or its round has closed. The stream gets the error."""
        if self._receiver is not None:
            self._intake._return_slot(self._receiver.slot)
        self._receiver, self._unwanted = None, error

    def _check_wanted(self) -> None:
        error = self._unwanted
        if error is not None:
            self._intake.refuse(self.offer, error)
            raise error

    def finish(self) -> None:
        """Ends an update that is whole; it counts from now on."""
        self._check_wanted()
        receiver = self._receiver
        if receiver is None:
            return
        try:
            self._intake._deliver(receiver, self._about)
        except FleetError as error:
            self._refuse(receiver, error)
            raise
        self._receiver = None
        self._intake._ended(self)

    def break_off(self) -> InvalidInput:
        """Ends an update whose stream broke off; returns the error."""
        came = self._about.size_bytes - self._unread
        error = InvalidInput(
            f"the stream broke off after {came} of {self._about.size_bytes} bytes", reason="UPDATE_INCOMPLETE"
        )
        if self._receiver is not None:
            self._refuse(self._receiver, error)
        return error

    def _refuse(self, receiver: SpoolWriter, error: FleetError) -> None:
        self._receiver = None
        self._intake._ended(self)
        self._intake._return_slot(receiver.slot)
        self._intake.refuse(self.offer, error)
