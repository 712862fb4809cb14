"""Refused calls: counted, audited, and answered one after the other for each identity."""

from typing import Any, Never

from parlmesh.errors import FleetError, PermissionDenied
from parlmesh.security import Identity
from parlmesh.security.authorisation import Guard
from parlmesh.telemetry import get_logger

from ..caller_identity import caller
from .call_quotas import Quotas
from .method_shapes import Behaviour, Context, Handler, Shape, handler_like, settled
from .metrics import REFUSED
from .time_and_byte_quotas import CALL_SECONDS, Accounts
from .unproven_bodies import Bodies

audit = get_logger("parlmesh.audit")


class Refusals:
    """Makes the handlers that answer with a refusal. They look like streams, so that no body is read before it."""

    def __init__(self, guard: Guard, quotas: Quotas, accounts: Accounts, bodies: Bodies) -> None:
        self._guard = guard
        self._quotas = quotas
        self._accounts = accounts
        self._bodies = bodies
        self._forbidding: dict[str, Handler] = {}

    def answering(self, handler: Handler, method: str, error: Exception) -> Handler:
        """A handler that answers one call with this error."""

        async def refuse(_: Any, context: Context) -> Never:
            if isinstance(error, FleetError):
                try:
                    await self._quotas.hold(error)
                finally:
                    # A caller that does not wait for the answer was refused as well.
                    _report(error, method, context)
            await self._drain(handler, context)
            raise error

        return _refusing(handler, method, refuse)

    def forbidding(self, handler: Handler, method: str) -> Handler:
        """A handler that answers every caller that may not call this method.

        It is made once, and a call waits in line before anything else is done for it: a burst of such calls would
        otherwise delay all other calls on the loop.
        """
        found = self._forbidding.get(method)
        if found is not None:
            return found

        async def refuse(_: Any, context: Context) -> Never:
            identity = caller()
            try:
                await self._quotas.stand_in_line(str(identity))
            finally:
                # A caller that does not wait for the answer was refused as well.
                error = self._count(identity, method)
                _report(error, method, context)
            if not isinstance(error, PermissionDenied):
                await self._quotas.hold(error)
            await self._drain(handler, context)
            raise error

        refusing = self._forbidding[method] = _refusing(handler, method, refuse)
        return refusing

    def _count(self, identity: Identity, method: str) -> FleetError:
        """Counts a call of a method that the identity may not call; the error to answer with."""
        try:
            self._quotas.count_call(identity)
            self._guard.authorise(identity, method)
        except PermissionDenied as error:
            self._quotas.count_refusal(identity)
            if (account := self._accounts.open(identity)) is not None:
                account.take_seconds(CALL_SECONDS)
            return error
        except FleetError as error:
            return error
        # Its role changed while it waited in line.
        return PermissionDenied(f"{identity} may not call {method}", reason="ROLE_NOT_ALLOWED")

    async def _drain(self, handler: Handler, context: Context) -> None:
        if handler.request_streaming:
            await self._bodies.discard_first(context.read, context.peer())


def _refusing(handler: Handler, method: str, refuse: Behaviour) -> Handler:
    shape = Shape(request_streaming=True, response_streaming=handler.response_streaming)
    return handler_like(shape, settled(refuse, method, timed=False), None, None)


def _report(error: FleetError, method: str, context: Context) -> None:
    REFUSED.labels(error.reason.lower()).inc()
    audit.warning(
        "call_refused",
        method=method,
        peer=context.peer(),
        identity=error.metadata.get("identity"),
        reason=error.reason.lower(),
    )
