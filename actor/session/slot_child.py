"""The process that runs one slot's attempts of one handler.

Started as `python -m actor.session.slot_child module:Class actor_id slot`. Messages on its pipes are
four bytes of length, little-endian, then the message.
"""

import os
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import BinaryIO

from parlmesh.blobs import Blobs
from parlmesh.function_tasks import IMPORTING, handler_at
from parlmesh.handlers import Context, Handler
from parlmesh.v1.fleet_service_pb2 import Assignment, TaskResult

from .attempt_results import call, failure_of

HEADER_BYTES = 4


def frame(message: bytes) -> bytes:
    """A message in the form in which it is sent over the pipe."""
    return len(message).to_bytes(HEADER_BYTES, "little") + message


def length_of(header: bytes) -> int:
    """Length of the message behind a header."""
    return int.from_bytes(header, "little")


def main(source: str, actor_id: str, slot: str, *told: str) -> None:
    """Serves until the pipe is closed or the process is killed."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a handler's output must not reach the pipe
    inbox: SimpleQueue[Assignment] = SimpleQueue()
    threading.Thread(target=_receive, args=(requests, inbox), daemon=True).start()
    os.environ[IMPORTING] = "1"
    handler: Handler = handler_at(source)
    blobs = Blobs.of(told)
    del os.environ[IMPORTING]
    while True:
        assignment = inbox.get()
        replies.write(frame(_run(handler, assignment, actor_id, int(slot), blobs).SerializeToString()))
        replies.flush()


def _receive(requests: BinaryIO, inbox: "SimpleQueue[Assignment]") -> None:
    # A separate thread notices that the actor has died even while the handler works.
    while header := requests.read(HEADER_BYTES):
        inbox.put(Assignment.FromString(requests.read(length_of(header))))
    os._exit(0)


def _run(handler: Handler, assignment: Assignment, actor_id: str, slot: int, blobs: Blobs) -> TaskResult:
    lease = assignment.lease
    context = Context(task_id=lease.task_id, attempt=lease.attempt, actor_id=actor_id, slot=slot)
    try:
        return TaskResult(result=call(handler, assignment, context, blobs))
    except Exception as error:
        return TaskResult(failure=failure_of(error))


if __name__ == "__main__":
    # An interpreter that shut down while the other thread reads would abort, and hide the error behind its own.
    code = 1
    try:
        main(*sys.argv[1:])
    except BrokenPipeError:  # the actor has died
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)
