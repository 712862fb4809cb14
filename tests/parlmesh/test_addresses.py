import pytest

from parlmesh.addresses import host_of, is_loopback, join_address


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("scheduler:50051", "scheduler"),
        ("10.0.0.1:1", "10.0.0.1"),
        ("[::1]:50051", "::1"),
        ("dns:///scheduler.example:50051", "scheduler.example"),
        ("dns://8.8.8.8/scheduler:50051", "scheduler"),
        ("ipv4:127.0.0.1:1", "127.0.0.1"),
        ("ipv6:[::1]:1", "::1"),
        ("unix:/run/scheduler.sock", ""),
        ("unix-abstract:scheduler", ""),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", ""])
def test_hosts_that_stay_on_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "scheduler", "localhost.example", "127.0.0.1.example"])
def test_hosts_that_do_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["scheduler", "127.0.0.1", "::1"])
def test_joining_and_taking_apart_are_inverse(host: str) -> None:
    assert host_of(join_address(host, 5)) == host
