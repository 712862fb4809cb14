"""Fitting known parameters."""

import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.worlds.cluster.parameter_fit import Record, fitted, joined_records, read_records
from parlmesh.worlds.placement.response_times import per_pod_response, shared_response


def recorded(queue, rate=40.0, network=15.0, noise=0.0, rows=400):
    rng = np.random.default_rng(1)
    replicas = rng.integers(1, 6, rows)
    load = rng.uniform(0.1, 0.9, rows) * replicas * rate
    respond = shared_response if queue == "shared" else per_pod_response
    latency = 1000.0 * respond(load, np.full(rows, rate), replicas) + network
    return Record(replicas * 1.0, load, latency * np.exp(noise * rng.standard_normal(rows)))


@pytest.mark.parametrize("queue", ["shared", "per_pod"])
def test_a_world_gives_its_own_parameters_back(queue):
    found = fitted(recorded(queue), queue)
    assert found.service_rate == pytest.approx(40.0, rel=0.05)
    assert found.network_ms == pytest.approx(15.0, abs=5.0)
    assert found.explained > 0.97
    assert found.relative_error < 0.06
    assert found.left_out == 0


def test_noise_increases_the_error_and_is_reported():
    found = fitted(recorded("per_pod", noise=0.2), "per_pod")
    assert found.service_rate == pytest.approx(40.0, rel=0.1)
    assert 0.1 < found.relative_error < 0.3


def test_the_wrong_queue_fits_worse():
    record = recorded("per_pod")
    assert fitted(record, "per_pod").error_ms < fitted(record, "shared").error_ms


def test_rows_that_say_nothing_are_left_out_and_too_few_are_refused():
    record = recorded("per_pod", rows=50)
    record.latency_ms[:3] = np.nan
    record.replicas[3] = 0
    assert fitted(record, "per_pod").left_out == 4
    with pytest.raises(InvalidInput, match=r"a fit of web needs at least 5 rows .* got 4 of 4"):
        fitted(recorded("per_pod", rows=4), "per_pod", "web")


def test_a_file_is_read_by_its_columns(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text(
        "time,deployment,replicas,requests_per_second,latency_ms\n1,web,2,10,30\n2,web,2,,31\n1,api,1,5,9\n"
    )
    found = read_records(file)
    assert list(found) == ["api", "web"]
    assert found["web"].latency_ms.tolist() == [30.0, 31.0]
    assert np.isnan(found["web"].load[1])
    file.write_text("deployment,replicas\nweb,2\n")
    with pytest.raises(InvalidInput, match="it has no requests_per_second, latency_ms"):
        read_records(file)
    file.write_text("deployment,replicas,requests_per_second,latency_ms\nweb,two,1,1\n")
    with pytest.raises(InvalidInput, match="line 2: replicas must be a number, got 'two'"):
        read_records(file)


def test_a_file_of_a_spreadsheet_is_read_and_one_without_rows_says_so(tmp_path):
    file = tmp_path / "metrics.csv"
    head = "deployment,replicas,requests_per_second,latency_ms"
    file.write_bytes(f"{head}\r\nweb,2,10,30\r\n".encode("utf-8-sig"))
    assert read_records(file)["web"].load.tolist() == [10.0]
    file.write_text(f"{head}\n")
    with pytest.raises(InvalidInput, match="has no rows below its header"):
        read_records(file)
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        read_records(tmp_path)


def test_series_are_joined_where_all_are_known():
    replicas, load = {"web": {1.0: 2.0, 2.0: 2.0}}, {"web": {2.0: 10.0, 3.0: 11.0}}
    found = joined_records([replicas, load, {"web": {1.0: 5.0, 2.0: 6.0}}])
    assert (found["web"].load.tolist(), found["web"].latency_ms.tolist()) == ([10.0], [6.0])
