"""TensorBoard reads what the learner wrote, up to where a disk cut it off."""

import resource

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import masked_crc32c

from learner.files.recorder import Recorder
from learner.files.tensorboard_events import EventFile, _checksum


def read(file):
    return list(EventFileLoader(str(file)).Load())


def point(step):
    return Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=step / 2)]))


def test_tensorboard_reads_every_event_as_soon_as_it_is_added(tmp_path):
    events = EventFile(tmp_path / "folder")
    for step in range(3):
        events.add(point(step))
    (file,) = (tmp_path / "folder").iterdir()
    first, *points = read(file)
    assert first.file_version == "brain.Event:2"
    assert [(event.step, event.summary.value[0].tag) for event in points] == [(0, "loss"), (1, "loss"), (2, "loss")]
    events.close()


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(32), bytes(range(256)) * 3])
def test_checksums_are_tensorboard_s_own(data):
    assert _checksum(data) == masked_crc32c(data).to_bytes(4, "little")


def test_two_files_of_one_second_are_two(tmp_path):
    for _ in range(2):
        EventFile(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_closed_file_takes_nothing(tmp_path):
    events = EventFile(tmp_path)
    events.close()
    events.close()
    with pytest.raises(OSError, match="closed"):
        events.add(point(1))


def test_after_a_full_disk_points_go_to_another_file_and_all_but_the_refused_are_read(tmp_path):
    recorder = Recorder(tmp_path, "run", "CartPole-v1", None)
    recorder.record(1, {"loss": 1.0})
    (file,) = (tmp_path / "tensorboard").iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, hard))
    try:
        recorder.record(2, {"loss": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    recorder.record(3, {"loss": 3.0})
    recorder.close()
    files = sorted((tmp_path / "tensorboard").iterdir())
    assert len(files) == 2
    assert sorted(event.step for each in files for event in read(each) if event.HasField("summary")) == [1, 3]
